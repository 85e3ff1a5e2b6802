// The Playground: a text is continued; each token has the colour of its probability and shows its alternatives.
import { useRef, useState } from 'preact/hooks';
import { streamJson } from './api.js';
import { t } from './i18n.js';
import { samplingFields, loadSampling } from './sampling.jsx';

const kNumAlternatives = 5;
const visible = (text) => text.replace(/\n/g, '↵').replace(/ /g, '·') || '∅';
const classOf = (logprob) => { const p = Math.exp(logprob); return p > 0.9 ? 'p5' : p > 0.6 ? 'p4' : p > 0.3 ? 'p3' : p > 0.1 ? 'p2' : 'p1'; };
const percentOf = (logprob) => `${(Math.exp(logprob) * 100).toFixed(1)} %`;

export function Playground({ server }) {
  const [prompt, setPrompt] = useState('The capital of France is');
  const [schema, setSchema] = useState('');
  const [maxTokens, setMaxTokens] = useState(64);
  const [tokens, setTokens] = useState([]);
  const [chosen, setChosen] = useState(null);
  const [error, setError] = useState('');
  const [isRunning, setRunning] = useState(false);
  const abort = useRef(null);

  async function run() {
    const body = { ...samplingFields(loadSampling()), model: server.model, prompt, max_tokens: Number(maxTokens) || 64, logprobs: kNumAlternatives, stream: true };
    delete body.tools;
    delete body.chat_template_kwargs;
    setTokens([]);
    setChosen(null);
    setError('');
    if (schema.trim()) {
      try {
        body.structured_outputs = { json: JSON.parse(schema) };
      } catch (problem) {
        return setError(t('badJson', { why: problem.message }));
      }
    }
    setRunning(true);
    abort.current = new AbortController();
    try {
      for await (const chunk of streamJson('v1/completions', body, abort.current.signal)) {
        const logprobs = chunk.choices?.[0]?.logprobs;
        if (!logprobs) continue;
        const added = logprobs.tokens.map((text, i) => ({ text, logprob: logprobs.token_logprobs[i], top: Object.entries(logprobs.top_logprobs?.[i] || {}).sort((a, b) => b[1] - a[1]) }));
        setTokens((old) => [...old, ...added]);
      }
    } catch (problem) {
      if (problem.name !== 'AbortError') setError(problem.message);
    }
    setRunning(false);
  }

  const token = chosen !== null && tokens[chosen];
  return (
    <div class="page">
      <section class="panel">
        <label for="p-text"><h2>{t('promptText')}</h2></label>
        <textarea id="p-text" class="text-input mono" rows={5} value={prompt} onInput={(event) => setPrompt(event.currentTarget.value)} onKeyDown={(event) => { if (event.key === 'Enter' && (event.ctrlKey || event.metaKey) && !isRunning) run(); if (event.key === 'Escape') abort.current?.abort(); }} />
        <details class="reasoning"><summary>{t('schema')}</summary><textarea class="text-input mono" rows={5} spellcheck={false} value={schema} placeholder={t('schemaHint')} aria-label={t('schema')} onInput={(event) => setSchema(event.currentTarget.value)} /></details>
        <div class="row">
          <label class="inline">{t('maxTokens')} <input class="text-input number" type="number" min="1" value={maxTokens} onInput={(event) => setMaxTokens(event.currentTarget.value)} /></label>
          <span class="grow" />
          {isRunning ? <button type="button" class="button" onClick={() => abort.current.abort()}>{t('stop')}</button> : <button type="button" class="button primary" disabled={server.state !== 'ready' || !prompt} onClick={run}>{t('complete')}</button>}
        </div>
        {error && <p class="error" role="alert">{error}</p>}
      </section>
      {tokens.length > 0 && (
        <div class="halves wide-left">
          <section class="panel">
            <p class="dim small">{t('probabilities')}</p>
            <div class="completion" data-testid="completion">
              <span class="dim">{prompt}</span>
              {tokens.map((each, i) => <span tabIndex={0} class={`ptoken ${classOf(each.logprob)} ${i === chosen ? 'is-chosen' : ''}`} onPointerEnter={() => setChosen(i)} onFocus={() => setChosen(i)}>{each.text}</span>)}
            </div>
          </section>
          <section class="panel" aria-live="polite">
            <header><h2>{t('alternatives')}</h2></header>
            {token && <ul class="alternatives">{token.top.map(([text, logprob]) => <li class={text === token.text ? 'is-chosen' : ''}><code>{visible(text)}</code><span class="mini-bar"><i style={{ width: `${Math.exp(logprob) * 100}%` }} /></span><span>{percentOf(logprob)}</span></li>)}</ul>}
          </section>
        </div>
      )}
    </div>
  );
}
