// The Playground: a text is continued; each token has the colour of its probability and shows its alternatives.
import { useEffect, useRef, useState } from 'preact/hooks';
import { postJson, streamJson } from './api.js';
import { t } from './i18n.js';
import { samplingFields, loadSampling } from './sampling.jsx';
import { pieceText } from './widgets.jsx';

const kNumAlternatives = 5;
const kNumAllowedShown = 40;
const visible = (text) => text.replace(/\n/g, '↵').replace(/ /g, '·') || '∅';
const classOf = (logprob) => { const p = Math.exp(logprob); return p > 0.9 ? 'p5' : p > 0.6 ? 'p4' : p > 0.3 ? 'p3' : p > 0.1 ? 'p2' : 'p1'; };
const percentOf = (logprob) => `${(Math.exp(logprob) * 100).toFixed(1)} %`;

// What the form let follow the tokens before `chosen`: {num_allowed, tokens, may_end}; null where that is not known.
function useAllowed(form, tokens, chosen) {
  const [answer, setAnswer] = useState(null);
  const known = useRef(new Map());
  useEffect(() => { known.current = new Map(); }, [form]);
  useEffect(() => {
    setAnswer(null);
    if (!form || chosen === null) return undefined;
    if (known.current.has(chosen)) return setAnswer(known.current.get(chosen));
    const controller = new AbortController();
    const before = tokens.slice(0, chosen).map(({ id }) => id);
    postJson('debug/allowed_tokens', { ...form, tokens: before }, controller.signal).then((found) => {
      known.current.set(chosen, found);
      setAnswer(found);
    }).catch(() => {});  // without it the panel shows the alternatives alone
    return () => controller.abort();
  }, [form, chosen]);
  return answer;
}

export function Playground({ server }) {
  const [prompt, setPrompt] = useState('The capital of France is');
  const [schema, setSchema] = useState('');
  const [maxTokens, setMaxTokens] = useState(64);
  const [tokens, setTokens] = useState([]);
  const [chosen, setChosen] = useState(null);
  const [error, setError] = useState('');
  const [form, setForm] = useState(null);  // that the answer shown had to have
  const [isRunning, setRunning] = useState(false);
  const abort = useRef(null);

  async function run() {
    const body = { ...samplingFields(loadSampling()), model: server.model, prompt, max_tokens: Number(maxTokens) || 64, logprobs: kNumAlternatives, return_token_ids: true, stream: true };
    delete body.tools;
    delete body.chat_template_kwargs;
    setTokens([]);
    setChosen(null);
    setError('');
    setForm(null);
    if (schema.trim()) {
      try {
        body.structured_outputs = { json: JSON.parse(schema) };
        setForm({ model: server.model, structured_outputs: body.structured_outputs });
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
        const ids = chunk.choices[0].token_ids || [];
        const added = logprobs.tokens.map((text, i) => ({ id: ids[i], text, logprob: logprobs.token_logprobs[i], top: Object.entries(logprobs.top_logprobs?.[i] || {}).sort((a, b) => b[1] - a[1]) }));
        setTokens((old) => [...old, ...added]);
      }
    } catch (problem) {
      if (problem.name !== 'AbortError') setError(problem.message);
    }
    setRunning(false);
  }

  const token = chosen !== null && tokens[chosen];
  const allowed = useAllowed(form, tokens, chosen);
  const isForbidden = (text) => allowed && allowed.tokens.length === allowed.num_allowed && !allowed.may_end && !allowed.tokens.some(({ piece }) => piece === text);
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
              {tokens.map((each, i) => <span tabIndex={0} class={`ptoken ${classOf(each.logprob)} ${i === chosen ? 'is-chosen' : ''}`} onPointerEnter={() => setChosen(i)} onFocus={() => setChosen(i)}>{each.text.replace(/\n/g, '↵\n')}</span>)}
            </div>
          </section>
          <section class="panel" aria-live="polite">
            <header><h2>{t('alternatives')}</h2></header>
            {token && <ul class="alternatives">{token.top.map(([text, logprob]) => <li class={text === token.text ? 'is-chosen' : isForbidden(text) ? 'is-forbidden' : ''}><code>{visible(text)}</code><span class="mini-bar"><i style={{ width: `${Math.exp(logprob) * 100}%` }} /></span><span>{percentOf(logprob)}</span></li>)}</ul>}
            {token && allowed && (
              <div class="allowed" data-testid="allowed">
                {allowed.num_allowed === 1 && !allowed.may_end ? t('allowedOne') : t('allowedHere', { n: allowed.num_allowed })}
                <ul>{allowed.tokens.slice(0, kNumAllowedShown).map(({ piece }) => <li><code>{visible(pieceText(piece))}</code></li>)}{allowed.num_allowed > kNumAllowedShown && <li>…</li>}{allowed.may_end && <li><code>{t('mayEnd')}</code></li>}</ul>
              </div>
            )}
          </section>
        </div>
      )}
    </div>
  );
}
