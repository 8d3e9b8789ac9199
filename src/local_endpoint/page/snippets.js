// The current request as something to paste into a terminal or an editor, for here or for RunPod.

import { endpoint } from "./api.js";

const ON_RUNPOD = "https://api.runpod.ai/v2/<ENDPOINT_ID>";

export const places = {
  here: endpoint,
  runpod: {
    id: "<ENDPOINT_ID>",
    url: ON_RUNPOD,
    openai_url: `${ON_RUNPOD}/openai/v1`,
    api_key: "<RUNPOD_API_KEY>",
  },
};

const base = ({ url }) => url.slice(0, url.lastIndexOf("/"));
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

const curl = (url, key, body, options = "") => `curl ${options}${quote(url)} \\
  -H ${quote(`Authorization: Bearer ${key}`)} \\
  -H 'Content-Type: application/json' \\
  -d ${quote(JSON.stringify(body, null, 2))}
`;

export function chat(body, { openai_url: url, api_key: key }) {
  const named = { model: "", ...body };
  const options = Object.entries(named).map(([name, value]) => `    ${name}=${python(value, "    ")},`);
  return {
    curl: curl(`${url}/chat/completions`, key, body, "-N "),
    python: `import openai

client = openai.OpenAI(base_url="${url}", api_key="${key}")
stream = client.chat.completions.create(
${options.join("\n")}
)
for part in stream:
    for choice in part.choices:
        print(choice.delta.content or "", end="", flush=True)
`,
    javascript: `import OpenAI from "openai";

const client = new OpenAI({ baseURL: "${url}", apiKey: "${key}" });
const stream = await client.chat.completions.create(${JSON.stringify(named, null, 2)});
for await (const { choices } of stream) {
  for (const { delta } of choices) process.stdout.write(delta.content ?? "");
}
`,
  };
}

export function raw({ mode, input }, place) {
  const { id, url, api_key: key } = place;
  const inPython = python({ input });
  const inJavaScript = JSON.stringify({ input }, null, 2);
  const use = {
    run: {
      python: `job = endpoint.run(${inPython})
for part in job.stream():
    print(part)
print(job.status())
`,
      javascript: `const { id } = await endpoint.run(${inJavaScript});
for await (const part of endpoint.stream(id)) console.log(part.output);
console.log(await endpoint.status(id));
`,
    },
    runsync: {
      python: `print(endpoint.run_sync(${inPython}))\n`,
      javascript: `console.log(await endpoint.runSync(${inJavaScript}));\n`,
    },
  }[mode];
  return {
    curl: curl(`${url}/${mode}`, key, { input }),
    python: `import runpod

runpod.endpoint_url_base = "${base(place)}"
endpoint = runpod.Endpoint("${id}", api_key="${key}")
${use.python}`,
    javascript: `import runpodSdk from "runpod-sdk";

const endpoint = runpodSdk("${key}", { baseUrl: "${base(place)}" }).endpoint("${id}");
${use.javascript}`,
  };
}

export const native = raw;
