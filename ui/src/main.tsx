import { render } from "preact";
import { App } from "./app";
import { follow } from "./lib/live";
import "uplot/dist/uPlot.min.css";
import "./styles/tokens.css";
import "./styles/base.css";
import "./styles/shell.css";
import "./styles/parts.css";
import "./styles/playground.css";
import "./styles/answer.css";
import "./styles/requests.css";
import "./styles/batch.css";
import "./styles/cache.css";
import "./styles/dashboard.css";
import "./styles/lab.css";
import "./styles/planner.css";

render(<App />, document.getElementById("app")!);
void follow();
