// The web page in headless Chromium, against a running server with a model that chats.
//
//   node web_page.mjs URL CHROMIUM [SCREENSHOT_FOLDER]
//
// With SPATE_PROGRAM that program is started too: with a key, to be restarted, with several models. Prints "ok <case>" or "FAILED <case>" for each case. Answers that a model would not give on demand (hostile texts,
// tool calls) are put in the server's place.
import { chromium } from 'playwright-core';
import { spawn } from 'node:child_process';
import { mkdirSync } from 'node:fs';

const [url, executablePath, shots] = process.argv.slice(2);
const browser = await chromium.launch({ executablePath, args: ['--no-sandbox'] });
let failed = 0;

async function test(name, body, { violatesPolicy = false, base = url, isReady = true, ...options } = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 820 }, locale: 'en-US', ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(30000);
  const problems = [];
  page.on('pageerror', (error) => problems.push(`error on the page: ${error.message}`));
  page.on('console', (message) => /Content.Security.Policy|Refused to/i.test(message.text()) && !violatesPolicy && problems.push(message.text()));
  page.on('request', (request) => { if (!request.url().startsWith(base) && !request.url().startsWith('blob:')) problems.push(`a request to ${request.url()}`); });
  try {
    await page.goto(`${base}/`);
    if (isReady) await page.waitForSelector('.model-chip.ready');
    await body(page, context);
    if (problems.length) throw new Error(problems.join('; '));
    console.log(`ok web page: ${name}`);
  } catch (error) {
    failed = 1;
    console.log(`FAILED web page: ${name}: ${error.message}`);
    if (shots) await page.screenshot({ path: `${shots}/failed.png` }).catch(() => {});
  }
  await context.close();
}

const check = (condition, what) => { if (!condition) throw new Error(what); };
const send = async (page, text) => {
  await page.fill('.composer textarea', text);
  await page.keyboard.press('Enter');
};
const finished = (page, count) => page.waitForFunction((n) => document.querySelectorAll('.message.assistant .actions [title="Regenerate"]').length >= n, count);
const limit = (page, tokens) => page.evaluate((n) => localStorage.setItem('spate.sampling', JSON.stringify({ max_tokens: n, temperature: 0, thinking: false })), tokens);

function sse(deltas, usage = { prompt_tokens: 12, completion_tokens: 30, total_tokens: 42 }) {
  const chunk = (body) => `data: ${JSON.stringify({ id: 'chatcmpl-1', object: 'chat.completion.chunk', created: 1, model: 'm', ...body })}\n\n`;
  return [
    ...deltas.map((delta) => chunk({ choices: [{ index: 0, delta, finish_reason: null }] })),
    chunk({ choices: [{ index: 0, delta: {}, finish_reason: 'stop' }] }), chunk({ choices: [], usage }), 'data: [DONE]\n\n',
  ].join('');
}
const answerWith = (page, deltas) => page.route('**/v1/chat/completions', (route) => route.fulfill({ contentType: 'text/event-stream', body: sse(deltas) }));
const shot = async (page, name) => { if (shots) await page.screenshot({ path: `${shots}/${name}.png` }); };
if (shots) mkdirSync(shots, { recursive: true });

await test('chat: an answer streams in, with its times', async (page) => {
  await limit(page, 200);
  await page.reload();
  await page.waitForSelector('.model-chip.ready');
  // A rate needs an answer of some length: a short one may come in one read on a busy machine, and has none.
  await page.route('**/v1/chat/completions', (route) => route.continue({ postData: JSON.stringify({ ...route.request().postDataJSON(), ignore_eos: true }) }));
  await send(page, 'Count from one to five.');
  await finished(page, 1);
  const text = await page.textContent('.message.assistant');
  check(text.trim().length > 0, 'the answer is empty');
  check(/TTFT .*tok\/s.*tokens/.test(await page.textContent('[data-testid=stats]')), 'no times below the answer');
});

await test('chat: stop ends the answer, and the server too', async (page) => {
  await limit(page, 4000);
  await page.evaluate(() => { const s = JSON.parse(localStorage.getItem('spate.sampling')); localStorage.setItem('spate.sampling', JSON.stringify({ ...s, temperature: 1.8 })); });
  await page.reload();
  await page.waitForSelector('.model-chip.ready');
  await page.route('**/v1/chat/completions', (route) => route.continue({ postData: JSON.stringify({ ...route.request().postDataJSON(), ignore_eos: true }) }));
  await send(page, 'Tell a long story.');
  await page.waitForFunction(() => document.querySelector('.message.assistant .markdown')?.textContent.length > 20);
  await page.keyboard.press('Escape');
  await finished(page, 1);
  check((await page.textContent('[data-testid=stats]')).includes('Stopped'), 'it does not say that it stopped');
  await page.waitForFunction(async () => /num_requests_running\{[^}]*\} 0\b/.test(await (await fetch('metrics')).text()));
});

// The page writes to IndexedDB after it shows an answer.
const stored = (page, text) => page.waitForFunction((wanted) => new Promise((resolve) => {
  const opening = indexedDB.open('spate', 1);
  opening.onsuccess = () => {
    const all = opening.result.transaction('conversations').objectStore('conversations').getAll();
    all.onsuccess = () => { opening.result.close(); resolve(JSON.stringify(all.result).includes(wanted)); };
  };
}), text);

await test('chat: conversations survive a reload', async (page) => {
  await answerWith(page, [{ role: 'assistant', content: '' }, { content: 'It is **kept**.' }]);
  await send(page, 'Remember this');
  await finished(page, 1);
  await stored(page, 'It is **kept**.');
  await page.reload();
  await page.waitForSelector('.message.assistant strong');
  check((await page.textContent('.message.user')).includes('Remember this'), 'the question is gone');
});

await test('chat: edit branches, regenerate adds a version', async (page) => {
  let count = 0;
  await page.route('**/v1/chat/completions', (route) => route.fulfill({ contentType: 'text/event-stream', body: sse([{ content: `answer ${++count} to ${route.request().postDataJSON().messages.at(-1).content}` }]) }));
  await send(page, 'first');
  await finished(page, 1);
  await page.click('[title="Regenerate"]');
  await page.waitForSelector('text=answer 2 to first');
  check((await page.textContent('.message.assistant .versions')).includes('2/2'), 'no second version');
  await page.click('.message.assistant [title="Previous version"]');
  await page.waitForSelector('text=answer 1 to first');
  await page.hover('.message.user');
  await page.click('.message.user [title="Edit"]');
  await page.fill('.editor textarea', 'second');
  await page.keyboard.press('Enter');
  await page.waitForSelector('text=answer 3 to second');
  check((await page.textContent('.message.user .versions')).includes('2/2'), 'the edit is not a branch');
});

await test('chat: reasoning is folded, tool calls are shown', async (page) => {
  await answerWith(page, [
    { role: 'assistant', content: '' }, { reasoning_content: 'Let me see.' },
    { tool_calls: [{ index: 0, id: 'call_1', type: 'function', function: { name: 'get_weather', arguments: '' } }] },
    { tool_calls: [{ index: 0, function: { arguments: '{"city":' } }] }, { tool_calls: [{ index: 0, function: { arguments: '"Paris"}' } }] },
  ]);
  await send(page, 'Weather?');
  await finished(page, 1);
  check(!(await page.isVisible('.reasoning .markdown')), 'the reasoning is not folded');
  await page.click('.reasoning summary');
  check(await page.isVisible('.reasoning .markdown'), 'the reasoning does not open');
  check(/get_weather/.test(await page.textContent('.tool-call')) && /"city": "Paris"/.test(await page.textContent('.tool-call')), 'the tool call is not shown');
});

const hostile = [
  '<script>window.hacked = 1</script><img src=x onerror="window.hacked = 2"><svg onload="window.hacked = 3"></svg>',
  '[click](javascript:window.hacked=4) ![x](https://evil.example/pixel.png) [d](data:text/html,<script>1</script>)',
  '```html\n<img src=x onerror=window.hacked=5>\n```\n<iframe srcdoc="<script>parent.hacked=6</script>"></iframe>',
  '$\\href{javascript:window.hacked=7}{x}$ $$\\html{<img src=x onerror=window.hacked=8>}\\class{a}{b}\\style{background:url(https://evil.example)}{c}$$ $\\url{javascript:alert(1)}$ \\(\\text{<script>window.hacked=9</script>}\\)',
  '| a<script>window.hacked=10</script> | b |\n|---|---|\n| <a href="javascript:window.hacked=11">x</a> | `<b onclick=window.hacked=12>` |',
  '<style>*{display:none}</style><form action="https://evil.example"><input></form><meta http-equiv="refresh" content="0;url=https://evil.example">',
  `${'*'.repeat(3000)} ${'['.repeat(3000)} ${'> '.repeat(300)}x ${'`'.repeat(2001)} ${'$'.repeat(999)} \u202e\u0000`,
  `$\\def\\a{\\a\\a}\\a$ $${'{'.repeat(2000)}$ ${'- '.repeat(500)}x`,
];
await test('hostile outputs stay text', async (page) => {
  for (const [i, text] of hostile.entries()) {
    await page.unroute('**/v1/chat/completions');
    await answerWith(page, [{ role: 'assistant', content: '' }, { reasoning_content: text }, { content: text }, { tool_calls: [{ index: 0, id: text, type: 'function', function: { name: text, arguments: text } }] }]);
    await send(page, text);
    await finished(page, i + 1);
    await page.click('.message.assistant:last-of-type .reasoning summary');
  }
  const found = await page.evaluate(() => ({
    hacked: window.hacked,
    elements: [...document.querySelectorAll('.messages script, .messages iframe, .messages img:not([src="ui/icon.svg"]), .messages form, .messages style, .messages meta, .messages object, .messages embed, .messages svg:not(.icon)')].map((e) => e.outerHTML),
    links: [...document.querySelectorAll('.messages a')].map((a) => a.href).filter((href) => !/^(https?|mailto):/.test(href)),
    handlers: [...document.querySelectorAll('.messages *')].flatMap((e) => [...e.attributes]).filter((a) => a.name.startsWith('on') || /javascript:/i.test(a.value)).map((a) => a.name),
  }));
  check(found.hacked === undefined, `script ran: ${found.hacked}`);
  check(!found.elements.length && !found.links.length && !found.handlers.length, JSON.stringify(found));
});

// Each took the square of its length or more, for as long as it was shown.
const slow = [
  `${'~'.repeat(20000)}\``, `\`\`\`${' '.repeat(100000)}\``, `# x${' '.repeat(100000)}x`, `a | b\n${' '.repeat(100000)}-x`, `- a${'\n'.repeat(50000)}  b`, `$$\n${'a\n'.repeat(50000)}`,
  `${'|'.repeat(3000)}\n${'|-'.repeat(3000)}|\n${'|\n'.repeat(3000)}`, `$${'{'.repeat(1900)}x${'}'.repeat(1900)}$ $${'\\sqrt{'.repeat(600)}x${'}'.repeat(600)}$`,
];
await test('long hostile outputs do not stop the page', async (page) => {
  await send(page, 'warm up');
  await finished(page, 1);
  const start = Date.now();
  for (const [i, text] of slow.entries()) {
    await page.unroute('**/v1/chat/completions');
    await answerWith(page, [{ role: 'assistant', content: '' }, { content: text }]);
    await send(page, `text ${i}`);
    await finished(page, i + 2);
    check(await page.evaluate(() => document.querySelector('.message.assistant:last-of-type .markdown').textContent.length > 0), `text ${i} is not shown`);
  }
  check(Date.now() - start < 12000, `they took ${Date.now() - start} ms`);
});

await test('the policy stops inline script even where it is injected', async (page) => {
  const ran = await page.evaluate(() => {
    document.body.insertAdjacentHTML('beforeend', '<img src="ui/none" onerror="window.ran = 1">');
    const script = document.createElement('script');
    script.textContent = 'window.ran = 2';
    document.body.append(script);
    return new Promise((resolve) => setTimeout(() => resolve(window.ran), 300));
  });
  check(ran === undefined, 'injected script ran');
}, { violatesPolicy: true });

await test('two tabs show the same conversations', async (page, context) => {
  await answerWith(page, [{ content: 'seen in both' }]);
  const other = await context.newPage();
  await other.goto(`${url}/`);
  await send(page, 'From the first tab');
  await finished(page, 1);
  await other.click('.conversation:has-text("From the first tab")');
  await other.waitForSelector('text=seen in both');
});

await test('copy as curl, Python and JavaScript', async (page) => {
  await page.evaluate(() => sessionStorage.setItem('spate.key', 'sk-secret'));
  await answerWith(page, [{ content: 'x' }]);
  await send(page, "It's a \"quote\"");
  await finished(page, 1);
  await page.click('[title="Copy as code"]');
  for (const [tab, part] of [['curl', 'chat/completions'], ['Python', 'client.chat.completions.create('], ['JavaScript', 'for await']]) {
    await page.click(`[role=tab]:has-text("${tab}")`);
    const text = await page.textContent('[data-testid=snippet]');
    check(text.includes(part) && text.includes('quote') && !text.includes('sk-secret'), `${tab}: ${text}`);
  }
});

await test('export and import', async (page) => {
  await answerWith(page, [{ content: 'exported' }]);
  await send(page, 'Take me along');
  await finished(page, 1);
  const [download] = await Promise.all([page.waitForEvent('download'), page.click('[title="Export"]')]);
  await page.click('.conversations [aria-label^="Delete"]');
  await page.waitForFunction(() => !document.querySelector('.conversation'));
  await page.setInputFiles('input[type=file]', await download.path());
  await page.click('.conversation:has-text("Take me along")');
  await page.waitForSelector('text=exported');
});

await test('an import keeps no field of another type', async (page) => {
  const nodes = {
    a: { id: '__proto__', role: 'user', content: 'a question of a file', parent: 'constructor' },
    b: { id: 'toString', role: 'assistant', content: { text: 1 }, reasoning: 7, parent: '__proto__', toolCalls: [{}, null, { function: { name: ['x'], arguments: {} } }], stats: { tokensPerSecond: 'fast', firstToken: {} } },
    c: null,
  };
  await page.setInputFiles('input[type=file]', { name: 'x.json', mimeType: 'application/json', buffer: Buffer.from(JSON.stringify({ conversations: [{ title: 'From a file', leaf: 'toString', nodes }] })) });
  await page.click('.conversation:has-text("From a file")');
  await page.waitForSelector('.message.user:has-text("a question of a file")');
  await page.waitForSelector('.message.assistant');
});

await test('a browser that keeps nothing still shows the page', async (page) => {
  await page.addInitScript(() => {
    for (const name of ['localStorage', 'sessionStorage', 'indexedDB']) Object.defineProperty(window, name, { get() { throw new DOMException('blocked', 'SecurityError'); } });
  });
  await page.reload();
  await page.waitForSelector('.model-chip.ready');
  await page.click('[title="Light or dark"]');
  await answerWith(page, [{ content: 'without storage' }]);
  await send(page, 'hi');
  await page.waitForSelector('text=without storage');
});

await test('copies where the browser lends no clipboard, from a dialog too', async (page) => {
  await page.addInitScript(() => {
    Object.defineProperty(navigator, 'clipboard', { value: undefined });
    addEventListener('copy', () => { window.copied = document.activeElement.value; });
  });
  await page.reload();
  await page.waitForSelector('.model-chip.ready');
  await answerWith(page, [{ content: 'x' }]);
  await send(page, 'hi');
  await finished(page, 1);
  await page.click('[title="Copy as code"]');
  await page.click('dialog .tabs [title="Copy"]');
  await page.waitForFunction(() => window.copied?.startsWith('curl '));
});

await test('the key goes into a header, not into an address', async (page) => {
  const requests = [];
  page.on('request', (request) => requests.push(request));
  await page.click('[title="API key"]');
  await page.fill('dialog input', 'sk-secret');
  await page.keyboard.press('Enter');
  await answerWith(page, [{ content: 'x' }]);
  await send(page, 'hi');
  await finished(page, 1);
  const chat = requests.find((request) => request.url().endsWith('chat/completions'));
  check(chat.headers().authorization === 'Bearer sk-secret', 'no Authorization header');
  check(!requests.some((request) => request.url().includes('sk-secret')), 'the key is in an address');
  check(await page.evaluate(() => !JSON.stringify(localStorage).includes('sk-secret')), 'the key is stored for ever');
});

await test('every control has a name', async (page) => {
  await answerWith(page, [{ content: '# Title\n\ntext' }]);
  await send(page, 'hi');
  await finished(page, 1);
  await page.click('[title="Sampling"]');
  const nameless = await page.evaluate(() => [...document.querySelectorAll('button, input, textarea, a')].filter((e) => !e.hidden && !e.getAttribute('aria-label') && !e.textContent.trim() && !(e.labels && e.labels.length)).map((e) => e.outerHTML.slice(0, 120)));
  check(!nameless.length, nameless.join('\n'));
});

// ---- the pages that watch the engine ----

// Streams that run until they are cut, each with words of its own: one that comes to its last token begins anew. `body` may ask how
// many were cut from the page.
async function withStreams(count, body) {
  const controller = new AbortController();
  const model = (await (await fetch(`${url}/v1/models`)).json()).data[0].id;
  let numCut = 0;
  const runs = Array.from({ length: count }, async (_, i) => {
    const prompt = `Story number ${i}: ${'once upon a time there was a server, '.repeat(1 + (i % 5) * 3)}`;
    const request = { method: 'POST', signal: controller.signal, headers: { 'Content-Type': 'application/json' }, body: JSON.stringify({ model, prompt, max_tokens: 3000, ignore_eos: true, stream: true, temperature: 1.2 }) };
    try {
      for (let isOver = true; isOver && !controller.signal.aborted;) {
        isOver = false;
        for await (const chunk of (await fetch(`${url}/v1/completions`, request)).body) isOver ||= Buffer.from(chunk).includes('"finish_reason":"length"');
      }
    } catch { /* cut below, or aborted from the page */ }
    numCut += 1;
  });
  try {
    await body(() => numCut);
  } finally {
    controller.abort();
    await Promise.all(runs);
  }
}
const goTo = (page, name) => page.click(`.nav-link:has-text("${name}")`);

await test('live: requests, steps and blocks; abort', async (page) => {
  await withStreams(4, async (numCut) => {
    await goTo(page, 'Live');
    await page.waitForFunction(() => document.querySelectorAll('.requests tbody tr').length === 4);
    await page.waitForSelector('.phase.decode');
    const map = page.locator('section[aria-label="KV cache"] canvas');
    await map.scrollIntoViewIfNeeded();
    const box = await map.boundingBox();
    const seen = new Set(), isOwned = () => seen.has('request N') || seen.has('shared');
    for (let y = 5; y < box.height && !isOwned(); y += 7) {  // blocks of ended requests may fill the first rows
      for (let x = 4; x < box.width && !isOwned(); x += 7) {
        await page.mouse.move(box.x + x, box.y + y);
        seen.add((await page.textContent('[data-testid=whose]')).replace(/.*: /, '').replace(/\d+/, 'N'));
      }
    }
    check(isOwned(), `hovering says ${[...seen]}`);
    await page.mouse.move(2, 2);
    await page.click('[title^="Abort request"] >> nth=0');
    await page.waitForFunction(() => document.querySelectorAll('.requests tbody tr').length === 3);
    for (let i = 0; i < 100 && numCut() === 0; ++i) await page.waitForTimeout(50);
    check(numCut() === 1, `${numCut()} streams were cut`);
  });
  await page.waitForSelector('text=Nothing runs');
});

await test('live: connects again when the stream is cut', async (page) => {
  const stats = { num_running: 77, num_waiting: 0, kv_cache_usage: 0, num_preemptions: 0, prefix_cache_queries: 0, prefix_cache_hits: 0 };
  const picture = { stats, num_blocks: 4, kv_block_size: 16, num_blocks_each: 1, num_seqs: 0, seqs: [], steps: [], cells: [0, 1, 2, 80], history: [] };
  let count = 0;
  // The first stream ends after one picture, the second is refused, the third is the server's.
  await page.route('**/debug/live*', (route) => (++count === 1 ? route.fulfill({ contentType: 'text/event-stream', body: `data: ${JSON.stringify(picture)}\n\n` }) : count === 2 ? route.abort() : route.continue()));
  await goTo(page, 'Live');
  await page.waitForSelector('.tile:has-text("77")');
  await page.waitForSelector('text=Not connected');
  await page.waitForFunction(() => !document.querySelector('.banner') && !document.querySelector('.tiles').textContent.includes('77'));
  check(count === 3, `${count} connections`);
});

await test('metrics: the server keeps the history', async (page) => {
  await goTo(page, 'Metrics');
  await page.waitForSelector('.chart canvas');
  check((await page.locator('.chart').count()) === 9, 'not all charts are there');
  await page.reload();
  await page.waitForSelector('.chart canvas');
  check(!/^.*–.*$/.test(await page.textContent('.chart >> nth=0 >> .legend')), 'the first chart has no value after a reload');
});

await test('model: facts, settings with their sources, tokens', async (page) => {
  await goTo(page, 'Model');
  await page.waitForSelector('.facts');
  check(/num_layers/.test(await page.textContent('.facts')), 'no architecture');
  await page.fill('[aria-label="Filter"]', 'port');
  check(/port.*0.*cli/.test(await page.textContent('.table-wrap')), 'the port has no source');
  await page.fill('textarea', '<b>one</b> two');
  await page.waitForFunction(() => document.querySelector('[data-testid=tokens]')?.textContent.includes('one</b> two'));
  await page.fill('textarea', '\u{1F9EC}');  // a character of several tokens
  await page.waitForFunction(() => document.querySelector('[data-testid=tokens]')?.textContent === '⟨F0⟩⟨9F⟩⟨A7⟩⟨AC⟩');
  await page.fill('[aria-label="Prompt"]', 'A <b>question</b>');
  await page.waitForFunction(() => /user\nA <b>question<\/b>/.test(document.querySelector('.snippet')?.textContent));
  check(/num_parameters11\.\d+M/.test(await page.textContent('.facts')), 'no number of parameters');
});

await test('playground: probabilities and alternatives', async (page) => {
  await goTo(page, 'Playground');
  await page.fill('#p-text', 'One, two, three,');
  await page.click('button:has-text("Complete")');
  await page.waitForFunction(() => document.querySelectorAll('.ptoken').length > 1);
  await page.hover('.ptoken >> nth=1');
  check((await page.locator('.alternatives li').count()) >= 5, 'no alternatives');
});

const withSchema = async (page, prompt, schema) => {
  await page.fill('#p-text', prompt);
  await page.click('summary:has-text("JSON schema")');
  await page.fill('[aria-label="JSON schema"]', JSON.stringify(schema));
  await page.click('button:has-text("Complete")');
  await page.waitForSelector('button:has-text("Complete")');  // it ran to its end
  await page.waitForFunction(() => document.querySelectorAll('.ptoken').length > 2);
};

await test('playground: a schema, and the tokens that it allows', async (page) => {
  await goTo(page, 'Playground');
  await withSchema(page, 'Red or green?', { enum: ['red', 'green'] });
  const text = (await page.locator('.ptoken').allTextContents()).join('');
  check(/^"(red|green)"/.test(text), `the answer is ${text}`);
  await page.hover('.ptoken >> nth=0');
  await page.waitForFunction(() => /allows/.test(document.querySelector('[data-testid=allowed]')?.textContent));
  const first = await page.locator('[data-testid=allowed] code').allTextContents();
  check(first.includes('"') && first.every((each) => ['"red"', '"green"'].some((whole) => whole.startsWith(each))), `it allows ${first}`);
  check((await page.locator('.alternatives .is-forbidden').count()) > 0, 'no alternative is struck out');
});

await test('log: lines come as they are written, by level and by words', async (page) => {
  await goTo(page, 'Log');
  await page.waitForSelector('.log-lines li');
  await page.evaluate(() => fetch('v1/models/none-of-that-name'));
  await page.waitForSelector('.log-lines li:has-text("none-of-that-name")');
  await page.fill('[aria-label="Filter"]', 'none-of-that-name');
  check((await page.locator('.log-lines li').count()) === 1, 'the filter lets others through');
  await page.selectOption('select', 'error');
  await page.waitForFunction(() => !document.querySelector('.log-lines li'));
});

await test('the keyboard is enough', async (page) => {
  await page.keyboard.press('Alt+Digit5');
  await page.waitForSelector('#p-text');
  await page.keyboard.press('Alt+Digit1');
  // The box takes the focus only after it is painted: a later blur would come too early, and "/" would be typed into it.
  await page.waitForFunction(() => document.activeElement.closest('.composer'));
  await page.evaluate(() => document.activeElement.blur());
  await page.keyboard.press('?');
  await page.waitForSelector('dialog[open] .keys');
  await page.keyboard.press('Escape');
  await answerWith(page, [{ content: 'yes' }]);
  await page.keyboard.press('/');
  await page.keyboard.type('Is this typed?');
  await page.keyboard.press('Enter');
  await finished(page, 1);
  await page.keyboard.press('ArrowUp');
  await page.waitForFunction(() => document.activeElement.closest('.editor') && document.activeElement.value === 'Is this typed?');
  await page.keyboard.press('Escape');
  await page.keyboard.press('Alt+KeyN');
  await page.waitForSelector('.welcome');
});

await test('Chinese: by the browser, by the button, for the next visit', async (page) => {
  check((await page.textContent('.welcome h2')) === '想问点什么？', 'a Chinese browser gets English');
  for (const name of ['实时', '指标', '模型', '实验场', '日志', '对话']) await goTo(page, name);
  await page.click('[title="English"]');
  check((await page.textContent('.welcome h2')) === 'What would you like to ask?', 'the button does nothing');
  await page.reload();
  await page.waitForSelector('text=What would you like to ask?');
}, { locale: 'zh-CN' });

// ---- servers of its own ----

// {url, end}: a server that listens; `port` 0: any.
function serve(flags, port = 0) {
  const server = spawn(process.env.SPATE_PROGRAM, ['serve', ...flags, '--device', 'cpu', '--host', '127.0.0.1', '--port', `${port}`], { stdio: ['ignore', 'ignore', 'pipe'] });
  const ended = new Promise((resolve) => server.once('exit', resolve));
  return new Promise((resolve, reject) => {
    let log = '';
    server.stderr.on('data', (part) => {
      log += part;
      const [, found] = /listening on (http:\/\/127\.0\.0\.1:\d+)/.exec(log) || [];
      if (found) resolve({ url: found, end: () => { server.kill('SIGKILL'); return ended; } });
    });
    ended.then(() => reject(new Error(`the server ended: ${log}`)));
  });
}

if (process.env.SPATE_PROGRAM) {
  const model = process.env.SPATE_MODEL || 'models/mini-qwen3';
  const locked = await serve([model, '--api-key', 'right']);
  await test('a page without its key says so and asks', async (page) => {
    await page.waitForSelector('dialog[open]:has-text("This server asks for a key.")');
    await page.fill('dialog input', 'wrong');
    await page.keyboard.press('Enter');
    await page.waitForSelector('dialog[open]:has-text("did not accept this key")');
    check(!(await page.isEnabled('.composer .send')), 'it would send');
    await page.fill('dialog input', 'right');
    await page.keyboard.press('Enter');
    await page.waitForSelector('.model-chip.ready');
    check(!(await page.isVisible('dialog')), 'it still asks');
    await goTo(page, 'Live');
    await page.waitForSelector('.tiles');
  }, { base: locked.url, isReady: false });
  await locked.end();

  let server = await serve([model]);
  await test('a server that starts again: the page says so, waits and goes on', async (page) => {
    await limit(page, 16);
    await page.reload();
    await page.waitForSelector('.model-chip.ready');
    await send(page, 'What is 2 + 3?');
    await finished(page, 1);
    await server.end();
    await page.click('[title="Regenerate"]');
    await page.waitForSelector('.error[role=alert]');
    await page.waitForSelector('.banner:has-text("does not answer")');
    server = await serve([model], Number(new URL(server.url).port));
    await page.waitForSelector('.model-chip.ready');
    await page.waitForFunction(() => !document.querySelector('.banner'));
    await page.click('button:has-text("Try again")');
    await page.waitForFunction(() => /TTFT/.test([...document.querySelectorAll('[data-testid=stats]')].pop()?.textContent));
  }, { base: server.url });
  await server.end();

  const two = await serve([model, '--model', `second=${model},kv-cache-memory=32M`, '--kv-cache-memory', '32M']);
  await test('of several models one is chosen, on every page', async (page) => {
    const asked = [];
    page.on('request', (request) => asked.push(`${new URL(request.url()).pathname}${new URL(request.url()).search} ${request.postData() || ''}`));
    await page.selectOption('.model-chip select', 'second');
    await page.reload();
    await page.waitForSelector('.model-chip.ready');
    check((await page.inputValue('.model-chip select')) === 'second', 'the choice is forgotten');
    await limit(page, 4);
    await send(page, 'hi');
    await finished(page, 1);
    check(asked.some((each) => each.startsWith('/v1/chat/completions') && JSON.parse(each.slice(21)).model === 'second'), 'the chat asks another model');
    await goTo(page, 'Model');
    await page.waitForFunction(() => /namesecond/.test(document.querySelector('.facts')?.textContent));
    await goTo(page, 'Live');
    await page.waitForSelector('.tiles');
    check(asked.some((each) => each.startsWith('/debug/live?model=second')), 'Live shows another model');
  }, { base: two.url });
  await two.end();

  const idle = await serve([model, '--model', `second=${model},kv-cache-memory=32M,idle-unload-seconds=0.3`, '--kv-cache-memory', '32M']);
  await test('a model that fell idle is told as such, and loaded for a question', async (page) => {
    await page.selectOption('.model-chip select', 'second');
    await goTo(page, 'Live');
    await page.waitForSelector('[role=status]:has-text("unloaded, as nobody used it")');
    await page.keyboard.press('Alt+Digit1');
    await limit(page, 4);
    await send(page, 'hi');
    await finished(page, 1);
    check(!(await page.isVisible('.message .error')), 'the answer is an error');
  }, { base: idle.url });
  await idle.end();
}

const sample = 'A **KV cache** keeps the keys and values of tokens that were computed before, so each step reads them instead of computing them again.\n\n' +
  'The memory it takes grows with the length of the sequence:\n\n$$M = 2 \\cdot L \\cdot n_{kv} \\cdot d_{head} \\cdot s \\cdot b$$\n\nwhere $L$ is the number of layers and $s$ the tokens.\n\n' +
  '```python\ndef kv_bytes(layers, kv_heads, head_dim, tokens, width=2):\n    """Bytes of keys and values."""\n    return 2 * layers * kv_heads * head_dim * tokens * width\n\nprint(kv_bytes(36, 8, 128, 32_768) / 2**30)  # 4.5 GiB\n```\n\n' +
  '| Model | Layers | Bytes a token |\n|---|---:|---:|\n| 4B | 36 | 147,456 |\n| 8B | 36 | 147,456 |\n\n1. Blocks of 16 tokens are *shared* by equal prefixes.\n2. A block in use is never written again.\n';
if (shots) {
  const scene = async (page) => {
    await answerWith(page, [{ role: 'assistant', content: '' }, { reasoning_content: 'The reader is a colleague: a formula and an example.' }, { content: sample }]);
    await send(page, 'Explain KV caching to a colleague');
    await finished(page, 1);
    await page.waitForTimeout(200);
  };
  await test('screenshot: chat', async (page) => { await shot(page, 'welcome'); await scene(page); await shot(page, 'chat'); await page.click('[title="Sampling"]'); await shot(page, 'sampling'); });
  await test('screenshot: dark', async (page) => { await scene(page); await page.evaluate(() => { document.querySelector('.messages').scrollTop = 0; }); await page.waitForTimeout(100); await shot(page, 'chat-dark'); }, { colorScheme: 'dark' });
  await test('screenshot: phone', async (page) => { await scene(page); await shot(page, 'chat-phone'); await page.click('[title="Menu"]'); await page.waitForTimeout(300); await shot(page, 'menu-phone'); }, { viewport: { width: 390, height: 780 }, deviceScaleFactor: 1, isMobile: true, hasTouch: true });
  await withStreams(16, async () => {
    const wait = (page) => page.waitForFunction(() => document.querySelectorAll('.requests tbody tr').length >= 10);
    await test('screenshot: live', async (page) => { await goTo(page, 'Live'); await wait(page); await page.waitForTimeout(3000); await shot(page, 'live'); });
    await test('screenshot: live, dark', async (page) => { await goTo(page, 'Live'); await wait(page); await page.waitForTimeout(300); await shot(page, 'live-dark'); }, { colorScheme: 'dark' });
    await test('screenshot: live on a phone', async (page) => { await page.goto(`${url}/#live`); await wait(page); await shot(page, 'live-phone'); }, { viewport: { width: 390, height: 780 }, isMobile: true, hasTouch: true });
    await test('screenshot: metrics', async (page) => { await goTo(page, 'Metrics'); await page.waitForSelector('.chart'); await page.waitForTimeout(300); await shot(page, 'metrics'); });
  });
  await test('screenshot: model', async (page) => { await goTo(page, 'Model'); await page.waitForSelector('[data-testid=tokens]'); await page.waitForTimeout(500); await shot(page, 'model'); });
  await test('screenshot: playground', async (page) => {
    await page.evaluate(() => localStorage.setItem('spate.sampling', JSON.stringify({ temperature: 1, seed: 5 })));
    await goTo(page, 'Playground');
    const ask = '<|im_start|>user\nReturn a JSON object with quantity, price, item, buyer.\nOrder: cow, quantity 80, unit price 313, for Anna.<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n';
    const animals = { enum: ['cat', 'cow', 'crane', 'dog'] }, names = { enum: ['Anna', 'Ben'] }, number = { type: 'integer' };
    await withSchema(page, ask, { type: 'object', properties: { quantity: number, price: number, item: animals, buyer: names }, required: ['quantity', 'price', 'item', 'buyer'] });
    await page.hover('.ptoken:has-text("c") >> nth=-1');
    await page.waitForSelector('[data-testid=allowed]');
    await page.waitForTimeout(300);
    await shot(page, 'playground');
  });
  await test('screenshot: log', async (page) => { await goTo(page, 'Log'); await page.waitForSelector('.log-lines li'); await shot(page, 'log'); });
  await test('screenshot: Chinese', async (page) => { await shot(page, 'chinese'); }, { locale: 'zh-CN' });
}

await browser.close();
process.exit(failed);
