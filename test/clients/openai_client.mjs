// What a user of the official Node client does, checked. Arguments: base URL with /v1, API key.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import OpenAI from 'openai';

const client = new OpenAI({ baseURL: process.argv[2], apiKey: process.argv[3], maxRetries: 0 });
const model = (await client.models.list()).data[0].id;
assert.equal((await client.models.retrieve(model)).id, model);
const messages = [{ role: 'user', content: 'Hello! Please say hello.' }];
const greedy = { model, messages, max_tokens: 16, temperature: 0 };

const answer = await client.chat.completions.create(greedy);
const text = answer.choices[0].message.content ?? '';
assert.ok(['stop', 'length'].includes(answer.choices[0].finish_reason));

let streamed = '';
let usage;
const chunks = await client.chat.completions.create({ ...greedy, stream: true, stream_options: { include_usage: true } });
for await (const chunk of chunks) {
  streamed += chunk.choices[0]?.delta?.content ?? '';
  usage = chunk.usage ?? usage;
}
assert.equal(streamed, text);
assert.equal(usage.completion_tokens, answer.usage.completion_tokens);

const final = await client.chat.completions.stream(greedy).finalChatCompletion();
assert.equal(final.choices[0].message.content ?? '', text);

const several = await client.chat.completions.stream({ ...greedy, n: 2, temperature: 1, max_tokens: 8 }).finalChatCompletion();
assert.deepEqual(several.choices.map((choice) => choice.index).sort(), [0, 1]);

const scored = await client.chat.completions.create({ ...greedy, max_tokens: 4, logprobs: true, top_logprobs: 3 });
assert.equal(scored.choices[0].logprobs.content.length, scored.usage.completion_tokens);
assert.equal(scored.choices[0].logprobs.content[0].top_logprobs.length, 3);

const echoed = await client.completions.create({ model, prompt: 'The river is in', max_tokens: 4, echo: true, logprobs: 2 });
assert.ok(echoed.choices[0].text.startsWith('The river is in'));

await assert.rejects(client.chat.completions.create({ ...greedy, model: 'no-such-model' }), OpenAI.NotFoundError);
await assert.rejects(client.chat.completions.create({ ...greedy, temperature: 9 }), (error) => {
  assert.ok(error instanceof OpenAI.BadRequestError);
  assert.equal(error.param, 'temperature');
  assert.match(error.message, /temperature must be in \[0, 2\], got 9/);
  return true;
});
const aborted = await client.chat.completions.create({ ...greedy, stream: true, ignore_eos: true });
for await (const chunk of aborted) {
  if (chunk) break; // closes the connection
}
// The client asks for base64 and reads an array of floats as an empty vector.
const embedded = await client.embeddings.create({ model, input: ['Hello', 'there'] });
assert.equal(embedded.data.length, 2);
assert.ok(embedded.data[0].embedding.length > 8);
assert.ok(Math.abs(embedded.data[0].embedding.reduce((sum, x) => sum + x * x, 0) - 1) < 1e-5);
const { version } = JSON.parse(readFileSync(new URL('node_modules/openai/package.json', import.meta.url)));
console.log(`npm openai ${version}: ${JSON.stringify(text)}`);
