import { comparing, type Lane } from "./lanes";
import { modelGroups } from "./models";

export function ModelPicker({ lane }: { lane: Lane }) {
  const label = comparing.value ? `Model ${lane.name}` : "Model";
  return (
    <select aria-label={label} value={lane.model.value} onChange={(event) => (lane.model.value = event.currentTarget.value)}>
      {modelGroups.value.map(([base, members]) =>
        members.length === 1 ? (
          <option key={base} value={members[0]!.id}>
            {members[0]!.id}
          </option>
        ) : (
          <optgroup key={base} label={base}>
            {members.map(({ id }) => (
              <option key={id} value={id}>
                {id}
              </option>
            ))}
          </optgroup>
        ),
      )}
    </select>
  );
}
