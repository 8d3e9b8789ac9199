// RunPod's Node client: runSync, run, stream, cancel, health, and a job that fails.

import runpodSdk from "runpod-sdk";

const { RUNPOD_ENDPOINT_BASE_URL, ENDPOINT_ID, API_KEY, PROMPT } = process.env;
const options = { baseUrl: RUNPOD_ENDPOINT_BASE_URL };
const endpoint = runpodSdk(API_KEY, options).endpoint(ENDPOINT_ID);
const chat = {
  messages: [{ role: "user", content: PROMPT }],
  sampling_params: { temperature: 0, max_tokens: 30 },
};
const endless = { prompt: "On", sampling_params: { n: 8, max_tokens: 400, ignore_eos: true } };
const said = {};

said.run_sync = (await endpoint.runSync({ input: chat })).output;

const job = await endpoint.run({ input: chat });
const end = await endpoint.statusSync(job.id);
said.run = end.output;
said.status = end.status;

const streaming = await endpoint.run({ input: { ...chat, stream: true, max_batch_size: 1 } });
said.streamed = streaming.id;
said.chunks = [];
for await (const chunk of endpoint.stream(streaming.id)) said.chunks.push(chunk.output);

const failed = await endpoint.runSync({ input: { ...chat, model: "nope" } });
said.failed_error = failed.error;
said.failed_status = failed.status;

const long = await endpoint.run({ input: endless });
while ((await endpoint.status(long.id)).status === "IN_QUEUE");
said.cancelled = long.id;
said.cancel = await endpoint.cancel(long.id);
said.cancelled_status = (await endpoint.status(long.id)).status;

said.health = await endpoint.health();

try {
  await runpodSdk("wrong", options).endpoint(ENDPOINT_ID).health();
} catch (error) {
  said.unauthorized = error.response.status;
}

console.log(JSON.stringify(said));
