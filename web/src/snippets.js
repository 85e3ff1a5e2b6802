// The request of a chat as a program that sends it. The key is a placeholder: it does not leave the page.

const indent = (text, by) => text.replace(/\n/g, `\n${by}`);

function python(value, level = 0) {
  const pad = '    '.repeat(level + 1);
  const end = '    '.repeat(level);
  if (value === null || value === undefined) return 'None';
  if (value === true) return 'True';
  if (value === false) return 'False';
  if (Array.isArray(value)) return value.length ? `[\n${value.map((v) => pad + python(v, level + 1)).join(',\n')},\n${end}]` : '[]';
  if (typeof value === 'object') {
    return `{\n${Object.entries(value).map(([k, v]) => `${pad}${JSON.stringify(k)}: ${python(v, level + 1)}`).join(',\n')},\n${end}}`;
  }
  return JSON.stringify(value);
}

const openAiNames = new Set(['model', 'messages', 'stream', 'stream_options', 'temperature', 'top_p', 'max_tokens', 'seed',
  'stop', 'presence_penalty', 'frequency_penalty', 'logprobs', 'top_logprobs']);

export function asCurl(url, body) {
  const json = JSON.stringify(body, null, 2).replaceAll("'", "'\\''");
  return `curl -N ${url}/v1/chat/completions \\\n  -H "Authorization: Bearer $SPATE_API_KEY" \\\n  -H 'Content-Type: application/json' \\\n  -d '${json}'`;
}

export function asPython(url, body) {
  const known = [], extra = {};
  for (const [name, value] of Object.entries(body)) {
    if (openAiNames.has(name)) known.push(`    ${name}=${python(value, 1)},`);
    else extra[name] = value;
  }
  if (Object.keys(extra).length) known.push(`    extra_body=${python(extra, 1)},`);
  return `import os
from openai import OpenAI

client = OpenAI(base_url="${url}/v1", api_key=os.environ.get("SPATE_API_KEY", "none"))
stream = client.chat.completions.create(
${known.join('\n')}
)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
`;
}

export function asJavaScript(url, body) {
  return `import OpenAI from "openai";

const client = new OpenAI({ baseURL: "${url}/v1", apiKey: process.env.SPATE_API_KEY ?? "none" });
const stream = await client.chat.completions.create(${indent(JSON.stringify(body, null, 2), '')});
for await (const chunk of stream) {
  process.stdout.write(chunk.choices[0]?.delta?.content ?? "");
}
`;
}
