// The chat page: one conversation, its messages and the box below them.
import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';
import { streamJson } from './api.js';
import { leafBelow, messagesFor, newId, pathTo, siblingsOf, withChangedNode, withNode } from './conversation.js';
import { t } from './i18n.js';
import { Markdown } from './markdown.jsx';
import { memo } from './memo.js';
import { loadSampling, SamplingDrawer, samplingFields, saveSampling } from './sampling.jsx';
import { asCurl, asJavaScript, asPython } from './snippets.js';
import { CopyButton, Dialog, formatSeconds, Icon, IconButton } from './widgets.jsx';

const kSaveIntervalMs = 500;  // while an answer grows

// Safari says that a composition has ended before the Enter that ends it.
const isComposing = (event) => event.isComposing || event.keyCode === 229;

function addToolCalls(calls, deltas) {
  const next = calls.map((call) => ({ ...call, function: { ...call.function } }));
  for (const delta of deltas) {
    const call = (next[delta.index] ||= { id: '', type: 'function', function: { name: '', arguments: '' } });
    if (delta.id) call.id = delta.id;
    if (delta.function?.name) call.function.name = delta.function.name;
    call.function.arguments += delta.function?.arguments || '';
  }
  return next;
}

function Stats({ stats, finish }) {
  if (!stats) return null;
  const parts = [];
  if (stats.firstToken !== undefined) parts.push(['TTFT', formatSeconds(stats.firstToken)]);
  if (stats.tokensPerSecond) parts.push(['', `${stats.tokensPerSecond.toFixed(1)} tok/s`]);
  if (stats.completionTokens !== undefined) parts.push(['', t('tokens', { n: `${stats.promptTokens} + ${stats.completionTokens}` })]);
  if (stats.cachedTokens) parts.push(['', t('cachedTokens', { n: stats.cachedTokens })]);
  if (finish === 'stopped') parts.push(['', t('stopped')]);
  if (finish === 'length') parts.push(['', t('lengthReached')]);
  return <span class="stats" data-testid="stats">{parts.map(([label, value]) => <span>{label && `${label} `}{value}</span>)}</span>;
}

function prettyArguments(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

const AssistantBody = memo(function AssistantBody({ node, isStreaming }) {
  return (
    <>
      {node.reasoning && (
        <details class="reasoning">
          <summary><Icon name="chevron" />{isStreaming && !node.content ? t('thinking') : t('reasoning')}</summary>
          <Markdown text={node.reasoning} />
        </details>
      )}
      {node.content && <Markdown text={node.content} />}
      {node.toolCalls?.map((call) => (
        <figure class="code tool-call">
          <figcaption><span><Icon name="tool" />{t('toolCall')}: <b>{call.function.name}</b></span><CopyButton text={call.function.arguments} /></figcaption>
          <pre tabIndex={0}><code>{prettyArguments(call.function.arguments)}</code></pre>
        </figure>
      ))}
      {isStreaming && !node.content && !node.reasoning && !node.toolCalls?.length && <span class="dots" role="status" aria-label={t('thinking')}><i /><i /><i /></span>}
    </>
  );
}, (a, b) => a.node === b.node && a.isStreaming === b.isStreaming);

function Editor({ text, onSave, onCancel }) {
  const [value, setValue] = useState(text);
  const ref = useRef();
  useEffect(() => { ref.current.focus(); grow(ref.current); }, []);
  const onKeyDown = (event) => {
    if (event.key === 'Escape') { event.stopPropagation(); onCancel(); }
    if (event.key === 'Enter' && !event.shiftKey && !isComposing(event)) { event.preventDefault(); if (value.trim()) onSave(value); }
  };
  return (
    <div class="editor">
      <textarea ref={ref} value={value} aria-label={t('edit')} onKeyDown={onKeyDown} onInput={(event) => { setValue(event.currentTarget.value); grow(event.currentTarget); }} />
      <div class="editor-actions">
        <button type="button" class="button" onClick={onCancel}>{t('cancel')}</button>
        <button type="button" class="button primary" disabled={!value.trim()} onClick={() => onSave(value)}>{t('saveAndSend')}</button>
      </div>
    </div>
  );
}

function grow(area) {
  area.style.height = 'auto';
  area.style.height = `${Math.min(area.scrollHeight, innerHeight * 0.4)}px`;
}

function Versions({ conversation, node, onSelect }) {
  const siblings = siblingsOf(conversation, node);
  if (siblings.length < 2) return null;
  const i = siblings.findIndex((each) => each.id === node.id);
  const select = (to) => onSelect(leafBelow(conversation, siblings[to].id));
  return (
    <span class="versions" role="group" aria-label={t('version', { i: i + 1, n: siblings.length })}>
      <IconButton icon="left" label={t('previousVersion')} disabled={i === 0} onClick={() => select(i - 1)} />
      <span>{i + 1}/{siblings.length}</span>
      <IconButton icon="right" label={t('nextVersion')} disabled={i + 1 === siblings.length} onClick={() => select(i + 1)} />
    </span>
  );
}

function CodeDialog({ body, onClose }) {
  const [kind, setKind] = useState('curl');
  const url = location.href.split('#')[0].split('?')[0].replace(/\/$/, '');
  const text = { curl: asCurl, Python: asPython, JavaScript: asJavaScript }[kind](url, body);
  return (
    <Dialog title={t('copyAs')} onClose={onClose}>
      <div class="tabs" role="tablist">{['curl', 'Python', 'JavaScript'].map((each) => <button type="button" role="tab" aria-selected={each === kind} onClick={() => setKind(each)}>{each}</button>)}<span class="grow" /><CopyButton text={text} /></div>
      <pre class="snippet" tabIndex={0} data-testid="snippet">{text}</pre>
    </Dialog>
  );
}

export function Chat({ conversation, server, onChange }) {
  const [draft, setDraft] = useState('');
  const [sampling, setSampling] = useState(loadSampling);
  const [isDrawerOpen, setDrawerOpen] = useState(false);
  const [editing, setEditing] = useState(null);
  const [codeFor, setCodeFor] = useState(null);
  const [streaming, setStreaming] = useState(null);  // the node that grows
  const state = useRef(conversation);
  state.current = conversation;
  const abort = useRef(null);
  const list = useRef();
  const box = useRef();
  const isAtEnd = useRef(true);

  const update = (next, options) => { state.current = next; onChange(next, options); };
  const stop = () => abort.current?.abort();
  useEffect(() => stop, []);
  useEffect(() => { if (matchMedia('(hover: hover)').matches) box.current?.focus(); }, []);
  useLayoutEffect(() => { if (isAtEnd.current && list.current) list.current.scrollTop = list.current.scrollHeight; });

  useEffect(() => {
    const onKey = (event) => {
      const isTyping = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName);
      if (event.key === 'Escape' && abort.current && !document.querySelector('dialog[open]')) stop();
      if (event.key === '/' && !isTyping) { event.preventDefault(); box.current?.focus(); }
    };
    addEventListener('keydown', onKey);
    return () => removeEventListener('keydown', onKey);
  }, []);

  const bodyFor = (parentId) => ({
    model: server.model,
    messages: messagesFor(state.current, parentId),
    stream: true,
    stream_options: { include_usage: true },
    ...samplingFields(sampling),
  });

  // A new answer below `parentId`. The text is kept as it comes: a reload loses half a second.
  async function answer(parentId) {
    const id = newId();
    const controller = new AbortController();
    abort.current = controller;
    update({ ...withNode(state.current, { id, parent: parentId, role: 'assistant', content: '', reasoning: '', toolCalls: [], stats: null, finish: 'stopped' }), isBusy: true });
    setStreaming(id);
    isAtEnd.current = true;
    const start = performance.now();
    let node = { content: '', reasoning: '', toolCalls: [], stats: {}, finish: 'stopped' };
    let frame = 0, lastSave = start, last = start;
    const flush = () => {
      frame = 0;
      const now = performance.now();
      const save = now - lastSave > kSaveIntervalMs;
      if (save) lastSave = now;
      update(withChangedNode(state.current, id, node), { save });
    };
    try {
      for await (const chunk of streamJson('v1/chat/completions', bodyFor(parentId), controller.signal)) {
        const now = performance.now();
        const [choice] = chunk.choices || [];
        if (choice) {
          const delta = choice.delta || {};
          const reasoning = delta.reasoning_content ?? delta.reasoning ?? '';
          if (delta.content || reasoning || delta.tool_calls) {
            last = now;
            if (node.stats.firstToken === undefined) node = { ...node, stats: { firstToken: (now - start) / 1000 } };
          }
          node = {
            ...node,
            content: node.content + (delta.content || ''),
            reasoning: node.reasoning + reasoning,
            toolCalls: delta.tool_calls ? addToolCalls(node.toolCalls, delta.tool_calls) : node.toolCalls,
            finish: choice.finish_reason || node.finish,
          };
        }
        if (chunk.usage) {
          const seconds = (last - start) / 1000 - (node.stats.firstToken || 0);
          node = {
            ...node,
            stats: {
              ...node.stats,
              promptTokens: chunk.usage.prompt_tokens,
              completionTokens: chunk.usage.completion_tokens,
              cachedTokens: chunk.usage.prompt_tokens_details?.cached_tokens,
              tokensPerSecond: chunk.usage.completion_tokens > 1 && seconds > 0.001 ? (chunk.usage.completion_tokens - 1) / seconds : undefined,
            },
          };
        }
        frame ||= requestAnimationFrame(flush);
      }
    } catch (error) {
      if (error.name !== 'AbortError') node = { ...node, error: error.message, finish: 'error' };
    }
    cancelAnimationFrame(frame);
    abort.current = null;
    setStreaming(null);
    const { isBusy, ...rest } = withChangedNode(state.current, id, node);
    update(rest);
  }

  function ask(text, parentId) {
    const id = newId();
    const title = state.current.title || text.trim().split('\n')[0].slice(0, 60);
    update({ ...withNode(state.current, { id, parent: parentId, role: 'user', content: text }), title });
    answer(id);
  }

  const canSend = server.state === 'ready' && !streaming;
  const send = () => {
    if (!draft.trim() || !canSend) return;
    ask(draft, state.current.leaf);
    setDraft('');
    requestAnimationFrame(() => grow(box.current));
  };
  const onKeyDown = (event) => {
    if (event.key === 'Enter' && !event.shiftKey && !isComposing(event)) { event.preventDefault(); send(); }
    if (event.key === 'ArrowUp' && !draft && !streaming) {
      const mine = path.filter((node) => node.role === 'user').pop();
      if (mine) { event.preventDefault(); setEditing(mine.id); }
    }
  };

  const path = pathTo(conversation);
  const changeSampling = (next) => { setSampling(next); saveSampling(next); };
  return (
    <div class="chat">
      <div class="messages" ref={list} onScroll={({ currentTarget: e }) => { isAtEnd.current = e.scrollHeight - e.scrollTop - e.clientHeight < 40; }}>
        <div class="column" role="log" aria-label={t('chat')} aria-live="off">
          {!path.length && (
            <div class="welcome">
              <img src="ui/icon.svg" alt="" width="52" height="52" />
              <h2>{t('welcome')}</h2>
              <div class="examples">{['example1', 'example2', 'example3'].map((key) => <button type="button" disabled={!canSend} onClick={() => ask(t(key), null)}>{t(key)}</button>)}</div>
            </div>
          )}
          {path.map((node, i) => (
            <article class={`message ${node.role}`} aria-label={t(node.role === 'user' ? 'you' : 'assistant')} data-role={node.role}>
              {node.role === 'user' ? (
                editing === node.id
                  ? <Editor text={node.content} onCancel={() => setEditing(null)} onSave={(text) => { setEditing(null); ask(text, node.parent); }} />
                  : <div class="bubble">{node.content}</div>
              ) : (
                <AssistantBody node={node} isStreaming={streaming === node.id} />
              )}
              {node.error && <div class="error" role="alert">{t('failed', { why: node.error })}<button type="button" class="button" disabled={!canSend} onClick={() => answer(node.parent)}>{t('retry')}</button></div>}
              {editing !== node.id && (
                <div class={`actions ${i === path.length - 1 ? 'is-last' : ''}`}>
                  <Versions conversation={conversation} node={node} onSelect={(leaf) => !streaming && update({ ...state.current, leaf })} />
                  {streaming !== node.id && <>
                    <CopyButton text={node.content} />
                    {node.role === 'user' && <IconButton icon="edit" label={t('edit')} disabled={Boolean(streaming)} onClick={() => setEditing(node.id)} />}
                    {node.role === 'assistant' && <IconButton icon="retry" label={t('regenerate')} disabled={!canSend} onClick={() => answer(node.parent)} />}
                    {node.role === 'assistant' && <IconButton icon="code" label={t('copyAs')} onClick={() => setCodeFor(bodyFor(node.parent))} />}
                    <Stats stats={node.stats} finish={node.finish} />
                  </>}
                </div>
              )}
            </article>
          ))}
        </div>
      </div>
      <div class="composer column">
        <div class="composer-box">
          <textarea ref={box} rows={1} value={draft} placeholder={t('askAnything')} aria-label={t('askAnything')} onKeyDown={onKeyDown} onInput={(event) => { setDraft(event.currentTarget.value); grow(event.currentTarget); }} />
          <div class="composer-row">
            <IconButton icon="sliders" label={t('settings')} aria-expanded={isDrawerOpen} onClick={() => setDrawerOpen(!isDrawerOpen)} />
            <span class="grow" />
            {streaming
              ? <IconButton icon="stop" kind="send" label={t('stop')} onClick={stop} />
              : <IconButton icon="send" kind="send" label={t('send')} disabled={!draft.trim() || !canSend} onClick={send} />}
          </div>
        </div>
      </div>
      {isDrawerOpen && <SamplingDrawer sampling={sampling} system={conversation.system} onChange={changeSampling} onSystem={(system) => update({ ...state.current, system })} onClose={() => setDrawerOpen(false)} />}
      {codeFor && <CodeDialog body={codeFor} onClose={() => setCodeFor(null)} />}
      <div class="visually-hidden" role="status" aria-live="polite">{streaming ? t('thinking') : ''}</div>
    </div>
  );
}
