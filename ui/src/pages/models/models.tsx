/** The models of this server: load, unload, put to sleep, add, remove. */
import { useSignal } from "@preact/signals";
import { lockReason, useAdminPolling } from "../../lib/admin";
import { errorMessage } from "../../lib/http";
import { reconnect } from "../../lib/live";
import { useShortcuts } from "../../lib/shortcuts";
import { AdminPage } from "../../parts/admin";
import { Button, Problem } from "../../parts/basics";
import { Confirm } from "../../parts/dialog";
import { AddDialog } from "./add-dialog";
import { type Action, type Adapter, type Model, act, addModel, listAdapters, listModels } from "./api";
import { ModelCard } from "./model-card";

export function Models() {
  const models = useSignal<Model[] | null>(null);
  const adapters = useSignal<Adapter[]>([]);
  const problem = useSignal("");
  const failed = useSignal<{ name: string; message: string } | null>(null);
  const busy = useSignal<Partial<Record<string, Action>>>({});
  const adding = useSignal(false);
  const removing = useSignal<string | null>(null);
  const reload = useAdminPolling(
    async (signal) => {
      const [all, loras] = await Promise.all([listModels(signal), listAdapters(signal)]);
      models.value = all;
      adapters.value = loras;
    },
    (message) => (problem.value = message),
    2000,
  );
  useShortcuts("Models", [{ keys: "n", label: "Add a model", run: () => (adding.value = lockReason.value === null) }]);
  const run = async (action: Action, name: string): Promise<void> => {
    busy.value = { ...busy.value, [name]: action };
    try {
      await act(action, name);
      if (failed.value?.name === name) failed.value = null;
      if (action !== "sleep") reconnect(); // the engines to choose from have changed
    } finally {
      busy.value = { ...busy.value, [name]: undefined };
      await reload();
    }
  };
  const onAction = (action: Action, name: string): void => {
    if (action === "remove") removing.value = name;
    else void run(action, name).catch((error: unknown) => (failed.value = { name, message: errorMessage(error) }));
  };
  const removed = removing.value;
  const served = (models.value ?? []).filter(({ kind }) => kind !== "adapter"); // those are in the card of their base
  return (
    <AdminPage
      title="Models"
      terms="models"
      lead="Models, routes and their deployments: state, load, circuit breakers."
      actions={
        <Button icon="plus" kind="primary" onClick={() => (adding.value = true)}>
          Add model
        </Button>
      }
    >
      <div class="stack">
        {problem.value && <Problem message={problem.value} onRetry={() => void reload()} />}
        {served.map((model) => (
          <ModelCard
            key={model.id}
            model={model}
            adapters={adapters.value.filter((one) => one.model === model.id)}
            onRemoveAdapter={(name) => onAction("remove", name)}
            busy={busy.value[model.id]}
            problem={failed.value?.name === model.id ? failed.value.message : ""}
            last={served.filter(({ kind }) => kind !== "route").length === 1}
            onAction={(action) => onAction(action, model.id)}
          />
        ))}
      </div>
      {adding.value && (
        <AddDialog
          names={(models.value ?? []).map((model) => model.id)}
          onClose={() => (adding.value = false)}
          add={async (entry) => {
            await addModel(entry);
            reconnect();
            await reload();
          }}
        />
      )}
      {removed !== null && (
        <Confirm title={`Remove ${removed}?`} action="Remove" run={() => run("remove", removed)} onClose={() => (removing.value = null)}>
          <p>Clients can no longer use it. It finishes its requests first. Files on disk stay.</p>
        </Confirm>
      )}
    </AdminPage>
  );
}
