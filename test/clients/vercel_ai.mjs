// What a user of the Vercel AI SDK does, checked. Arguments: base URL with /v1, API key.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { embedMany, generateObject, generateText, streamObject, streamText, tool } from 'ai';
import { z } from 'zod';

const [, , baseURL, apiKey] = process.argv;
const listed = await (await fetch(`${baseURL}/models`, { headers: { Authorization: `Bearer ${apiKey}` } })).json();
const name = listed.data[0].id;
const compatible = createOpenAICompatible({ name: 'spate', baseURL, apiKey, supportsStructuredOutputs: true, includeUsage: true });
const openai = createOpenAI({ baseURL, apiKey });
const prompt = 'Hello! Please say hello.';
const schema = z.object({ age: z.number().int().min(0).max(150), isTall: z.boolean() });
const tools = {
  getWeather: tool({
    description: 'The weather of a city.',
    inputSchema: z.object({ city: z.enum(['Paris', 'Rome']) }),
  }),
};
let text;
for (const model of [compatible(name), openai.chat(name), openai.responses(name)]) {
  const greedy = { model, prompt, temperature: 0, maxRetries: 0 };
  const answer = await generateText({ ...greedy, maxOutputTokens: 16 });
  text = answer.text;
  assert.ok(text.length > 0);
  assert.ok(answer.usage.outputTokens <= 16);
  const stream = streamText({ ...greedy, maxOutputTokens: 16, onError: ({ error }) => { throw error; } });
  let streamed = '';
  for await (const delta of stream.textStream) streamed += delta;
  assert.equal(streamed, text);
  assert.equal((await stream.usage).outputTokens, answer.usage.outputTokens);

  for (const toolChoice of ['required', { type: 'tool', toolName: 'getWeather' }]) {
    const called = await generateText({ ...greedy, maxOutputTokens: 200, tools, toolChoice });
    assert.equal(called.toolCalls[0].toolName, 'getWeather');
    assert.ok(['Paris', 'Rome'].includes(called.toolCalls[0].input.city));
    const calls = await streamText({ ...greedy, maxOutputTokens: 200, tools, toolChoice }).toolCalls;
    assert.deepEqual(calls[0].input, called.toolCalls[0].input);
  }
  // The model decides, and need not call: what comes, whole or streamed, is the same.
  const free = await generateText({ ...greedy, maxOutputTokens: 16, tools, toolChoice: 'auto' });
  const parts = [];
  const freeStream = streamText({ ...greedy, maxOutputTokens: 16, tools, toolChoice: 'auto', onError: ({ error }) => { throw error; } });
  for await (const part of freeStream.fullStream) parts.push(part);
  assert.equal(parts.filter((part) => part.type === 'text-delta').map((part) => part.text).join(''), free.text);
  assert.ok(free.text.length > 0 || free.toolCalls.length > 0);
  assert.equal(parts.at(-1).type, 'finish');
  assert.equal(parts.at(-1).finishReason, free.finishReason);
  const { object: anything } = await generateObject({ ...greedy, output: 'no-schema', maxOutputTokens: 300 });
  assert.ok(anything !== null && typeof anything === 'object');
  const { object } = await generateObject({ ...greedy, schema, maxOutputTokens: 300 });
  assert.ok(object.age >= 0 && object.age <= 150 && typeof object.isTall === 'boolean');
  let partial;
  for await (partial of streamObject({ ...greedy, schema, maxOutputTokens: 300 }).partialObjectStream);
  assert.deepEqual(partial, object);
  await assert.rejects(generateText({ ...greedy, temperature: 9 }), /temperature must be in \[0, 2\], got 9/);
}
const { embeddings } = await embedMany({ model: compatible.textEmbeddingModel(name), values: ['Hello', 'there'], maxRetries: 0 });
assert.equal(embeddings.length, 2);
const { version } = JSON.parse(readFileSync(new URL('node_modules/ai/package.json', import.meta.url)));
console.log(`npm ai ${version}: ${JSON.stringify(text)}`);
