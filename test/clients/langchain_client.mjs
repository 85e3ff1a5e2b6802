// What a user of LangChain for JavaScript does, checked. Arguments: base URL with /v1, API key.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { tool } from '@langchain/core/tools';
import { ChatOpenAI, OpenAIEmbeddings } from '@langchain/openai';
import { z } from 'zod';

const [, , baseURL, apiKey] = process.argv;
const listed = await (await fetch(`${baseURL}/models`, { headers: { Authorization: `Bearer ${apiKey}` } })).json();
const place = { model: listed.data[0].id, apiKey, configuration: { baseURL }, maxRetries: 0 };
const chat = new ChatOpenAI({ ...place, temperature: 0, maxTokens: 300 });
const short = new ChatOpenAI({ ...place, temperature: 0, maxTokens: 16 });
const question = 'Hello! Please say hello.';

const answer = await short.invoke(question);
assert.ok(answer.content.length > 0 && answer.usage_metadata.output_tokens <= 16);
let streamed = '';
for await (const chunk of await short.stream(question)) streamed += chunk.content;
assert.equal(streamed, answer.content);
assert.deepEqual((await short.batch([question, question])).map((each) => each.content), [answer.content, answer.content]);

const getWeather = tool(() => 'dry', {
  name: 'get_weather',
  description: 'The weather of a city.',
  schema: z.object({ city: z.enum(['Paris', 'Rome']) }),
});
for (const choice of ['any', 'required', 'get_weather']) {
  const [call] = (await chat.bindTools([getWeather], { tool_choice: choice, parallel_tool_calls: false }).invoke(question)).tool_calls;
  assert.equal(call.name, 'get_weather');
  assert.ok(['Paris', 'Rome'].includes(call.args.city));
}
const free = await short.bindTools([getWeather], { tool_choice: 'auto' }).invoke(question);  // it need not call
assert.ok(free.content.length > 0 || free.tool_calls.length > 0);
let joined;
for await (const chunk of await short.bindTools([getWeather], { tool_choice: 'auto' }).stream(question)) joined = joined ? joined.concat(chunk) : chunk;
assert.equal(joined.content, free.content);
assert.deepEqual(joined.tool_calls.map((call) => call.args), free.tool_calls.map((call) => call.args));
assert.equal((await chat.bindTools([getWeather], { tool_choice: 'none' }).invoke(question)).tool_calls.length, 0);

const schema = z.object({ age: z.number().int().min(0).max(150), is_tall: z.boolean() });
for (const method of ['jsonSchema', 'functionCalling']) {
  const person = await chat.withStructuredOutput(schema, { name: 'person', method }).invoke(question);
  assert.ok(person.age >= 0 && person.age <= 150 && typeof person.is_tall === 'boolean', method);
}
// JSON of any shape: what comes parses; the model is too small to fill the schema by itself.
const json = await chat.withConfig({ response_format: { type: 'json_object' } }).invoke(question);
assert.equal(typeof JSON.parse(json.content), 'object');
assert.equal((await new OpenAIEmbeddings(place).embedDocuments(['Hello', 'there'])).length, 2);
await assert.rejects(new ChatOpenAI({ ...place, temperature: 9 }).invoke(question), /temperature must be in \[0, 2\], got 9/);
const { version } = JSON.parse(readFileSync(new URL('node_modules/@langchain/openai/package.json', import.meta.url)));
console.log(`npm @langchain/openai ${version}: ${JSON.stringify(answer.content)}`);
