// The current request as something to paste into a terminal or an editor.

import { endpoint } from "./api.js";

const quote = (text) => `'${text.replaceAll("'", "'\\''")}'`;

function python(value, indent = "") {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const deeper = `${indent}    `;
  const isList = Array.isArray(value);
  const parts = Object.entries(value).map(
    ([key, item]) => (isList ? "" : `${JSON.stringify(key)}: `) + python(item, deeper),
  );
  const [open, close] = isList ? "[]" : "{}";
  const line = open + parts.join(", ") + close;
  if (line.length < 70 && !line.includes("\n")) return line;
  return `${open}\n${parts.map((part) => `${deeper}${part},\n`).join("")}${indent}${close}`;
}

const curl = (url, body, options = "") => `curl ${options}${url} \\
  -H ${quote(`Authorization: Bearer ${endpoint.api_key}`)} \\
  -H 'Content-Type: application/json' \\
  -d ${quote(JSON.stringify(body, null, 2))}
`;

export function chat(body) {
  const options = Object.entries(body).map(([key, value]) => `    ${key}=${python(value, "    ")},`);
  if (!body.model) options.unshift('    model="",');
  return {
    curl: curl(`${endpoint.openai_url}/chat/completions`, body, "-N "),
    python: `import openai

client = openai.OpenAI(base_url="${endpoint.openai_url}", api_key="${endpoint.api_key}")
stream = client.chat.completions.create(
${options.join("\n")}
)
for part in stream:
    for choice in part.choices:
        print(choice.delta.content or "", end="", flush=True)
`,
  };
}

export function raw({ mode, input }) {
  const request = python({ input });
  const use = {
    run: `job = endpoint.run(${request})\nfor part in job.stream():\n    print(part)\nprint(job.status())\n`,
    runsync: `print(endpoint.run_sync(${request}))\n`,
  };
  return {
    curl: curl(`${endpoint.url}/${mode}`, { input }),
    python: `import runpod

runpod.endpoint_url_base = "${endpoint.url.slice(0, endpoint.url.lastIndexOf("/"))}"
endpoint = runpod.Endpoint("${endpoint.id}", api_key="${endpoint.api_key}")
${use[mode]}`,
  };
}

export const native = raw;
