// The Log page: the server's last lines, new ones as they come.
import { useEffect, useRef, useState } from 'preact/hooks';
import { getJson } from './api.js';
import { t } from './i18n.js';

const kMaxLines = 1000;
const kIntervalMs = 1000;
const kLevels = ['info', 'warning', 'error'];

// Lines of at least `level`; asks for those behind the last one that it has.
function useLog(level) {
  const [state, setState] = useState({ lines: null, isConnected: true });
  useEffect(() => {
    const controller = new AbortController();
    let timer, lines = null;
    async function ask() {
      try {
        const after = lines?.length ? lines[lines.length - 1].number : 0;
        const found = (await getJson(`debug/log?level=${level}&after=${after}`, controller.signal)).lines;
        if (!lines || found.length) lines = [...(lines || []), ...found].slice(-kMaxLines);
        setState({ lines, isConnected: true });
      } catch {
        if (controller.signal.aborted) return;
        // A server that starts again counts from 1.
        lines = null;
        setState((old) => ({ ...old, isConnected: false }));
      }
      timer = setTimeout(ask, kIntervalMs);
    }
    ask();
    return () => { controller.abort(); clearTimeout(timer); };
  }, [level]);
  return state;
}

export function Log() {
  const [level, setLevel] = useState('info');
  const [filter, setFilter] = useState('');
  const { lines, isConnected } = useLog(level);
  const list = useRef();
  const isAtEnd = useRef(true);
  useEffect(() => { if (isAtEnd.current && list.current) list.current.scrollTop = list.current.scrollHeight; });
  const wanted = filter.toLowerCase();
  const shown = (lines || []).filter(({ component, message }) => !wanted || `${component} ${message}`.toLowerCase().includes(wanted));
  return (
    <div class="page log-page">
      {!isConnected && <div class="banner in-page" role="status">{t('paused')}</div>}
      <section class="panel">
        <header>
          <label class="inline">{t('leastLevel')} <select class="text-input" value={level} onChange={(event) => setLevel(event.currentTarget.value)}>{kLevels.map((each) => <option value={each}>{each}</option>)}</select></label>
          <input type="search" class="text-input filter" placeholder={t('filter')} aria-label={t('filter')} value={filter} onInput={(event) => setFilter(event.currentTarget.value)} />
        </header>
        <ol class="log-lines" ref={list} tabIndex={0} aria-label={t('log')} onScroll={({ currentTarget: e }) => { isAtEnd.current = e.scrollHeight - e.scrollTop - e.clientHeight < 40; }}>
          {shown.map(({ number, time, level: each, component, message }) => (
            <li key={number} class={each.toLowerCase()}><time>{new Date(time * 1000).toLocaleTimeString([], { hour12: false })}</time> <b>{each}</b> <i>{component}</i> {message}</li>
          ))}
        </ol>
      </section>
    </div>
  );
}
