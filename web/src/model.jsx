// The Model page: what was loaded, where the memory goes, every setting with its source, the prompt that a chat becomes.
import { useEffect, useState } from 'preact/hooks';
import { getJson, ofModel, postJson } from './api.js';
import { t } from './i18n.js';
import { formatBytes, formatCount, pieceText } from './widgets.jsx';

// Waits for the last change, then asks; an older answer never replaces a newer one.
function useAnswer(ask, key) {
  const [answer, setAnswer] = useState({ value: null, error: null });
  useEffect(() => {
    const controller = new AbortController();
    const timer = setTimeout(async () => {
      try {
        setAnswer({ value: await ask(controller.signal), error: null });
      } catch (error) {
        if (error.name !== 'AbortError') setAnswer({ value: null, error: error.message });
      }
    }, 200);
    return () => { clearTimeout(timer); controller.abort(); };
  }, [key]);
  return answer;
}

// A token that is a part of a character is told by its bytes.
export function Tokens({ tokens }) {
  return (
    <div class="tokens" data-testid="tokens">
      {tokens.map(({ id, piece }, i) => <span class={`token hue-${i % 6}`} title={`${id}`}>{pieceText(piece).replace(/\n/g, '↵\n') || '∅'}</span>)}
    </div>
  );
}

function Tokenizer({ model }) {
  const [text, setText] = useState('The quick brown fox 你好，世界');
  const { value, error } = useAnswer((signal) => postJson('tokenize', { model, prompt: text, add_special_tokens: false, with_pieces: true }, signal), `${model} ${text}`);
  return (
    <section class="panel">
      <header><h2>{t('tokenizer')}</h2>{value && <span class="dim">{t('count', { n: value.count, m: [...text].length })}</span>}</header>
      <textarea class="text-input" rows={2} value={text} aria-label={t('tokenizerHint')} onInput={(event) => setText(event.currentTarget.value)} />
      {error ? <p class="field-error">{error}</p> : value && <Tokens tokens={value.tokens} />}
    </section>
  );
}

function Template({ model, source }) {
  const [text, setText] = useState('Hello');
  const { value, error } = useAnswer(async (signal) => {
    const { tokens, count } = await postJson('tokenize', { model, messages: [{ role: 'user', content: text }] }, signal);
    return { count, prompt: (await postJson('detokenize', { model, tokens }, signal)).prompt };
  }, `${model} ${text}`);
  return (
    <section class="panel">
      <header><h2>{t('chatTemplate')}</h2>{value && <span class="dim">{t('tokens', { n: value.count })}</span>}</header>
      <input class="text-input" value={text} aria-label={t('prompt')} onInput={(event) => setText(event.currentTarget.value)} />
      <h3>{t('templatePreview')}</h3>
      {error ? <p class="field-error">{error}</p> : <pre class="snippet" tabIndex={0}>{value?.prompt}</pre>}
      {source && <details class="reasoning"><summary>{t('chatTemplate')}</summary><pre class="snippet" tabIndex={0}>{source}</pre></details>}
    </section>
  );
}

function Memory({ memory }) {
  const total = memory.weights + memory.kv_cache;
  return (
    <section class="panel">
      <header><h2>{t('memorySplit')}</h2><span class="dim">{formatBytes(total)}</span></header>
      <div class="split" role="img" aria-label={`${t('weights')} ${formatBytes(memory.weights)}, ${t('kvCache')} ${formatBytes(memory.kv_cache)}`}>
        <i class="dot-prefill" style={{ flexGrow: memory.weights / total }} /><i class="dot-decode" style={{ flexGrow: memory.kv_cache / total }} />
      </div>
      <ul class="legend"><li><i class="dot-prefill" />{t('weights')} <b>{formatBytes(memory.weights)}</b></li><li><i class="dot-decode" />{t('kvCache')} <b>{formatBytes(memory.kv_cache)}</b></li></ul>
    </section>
  );
}

export function Model({ server }) {
  const { value: config, error } = useAnswer((signal) => getJson(ofModel('config', server.model), signal), `${server.state} ${server.model}`);
  const [filter, setFilter] = useState('');
  if (!config) return <div class="page"><p class="dim" role="status">{error || '…'}</p></div>;
  const matching = (config.settings || []).filter(({ name, value, source }) => `${name} ${value} ${source}`.toLowerCase().includes(filter.toLowerCase()));
  return (
    <div class="page">
      <div class="halves">
        <section class="panel">
          <header><h2>{t('architecture')}</h2></header>
          <dl class="facts">{Object.entries(config.model || {}).map(([name, value]) => <div><dt>{name}</dt><dd>{name === 'num_parameters' ? formatCount(value) : String(value)}</dd></div>)}</dl>
        </section>
        <div>
          {config.memory && <Memory memory={config.memory} />}
          <section class="panel"><ul class="lines">{(config.summary || []).map((line) => <li>{line}</li>)}</ul></section>
        </div>
      </div>
      <Tokenizer model={server.model} />
      <Template model={server.model} source={config.chat_template} />
      <section class="panel">
        <header><h2>{t('configuration')}</h2><input type="search" class="text-input filter" placeholder={t('filter')} aria-label={t('filter')} value={filter} onInput={(event) => setFilter(event.currentTarget.value)} /></header>
        <div class="table-wrap plain" tabIndex={0}>
          <table><thead><tr><th>{t('name')}</th><th>{t('value')}</th><th>{t('source')}</th></tr></thead>
            <tbody>{matching.map(({ name, value, source }) => <tr class={source === 'default' ? 'is-default' : ''}><td class="mono">{name}</td><td class="mono">{value}</td><td>{source}</td></tr>)}</tbody></table>
        </div>
      </section>
    </div>
  );
}
