// The frame of the page: navigation, the list of conversations, the state of the server, the key.
import { useEffect, useRef, useState } from 'preact/hooks';
import { apiKey, getJson, onKeyNeeded, setApiKey } from './api.js';
import { Chat } from './chat.jsx';
import { newConversation, readExport } from './conversation.js';
import { deleteConversation, loadConversation, loadConversations, onOtherTab, saveConversation } from './db.js';
import { currentLanguage, setLanguage, t } from './i18n.js';
import { pages } from './pages.jsx';
import { local } from './storage.js';
import { Dialog, Icon, IconButton } from './widgets.jsx';

const pageOf = () => {
  const name = location.hash.slice(1).split('/')[0];
  return pages.some((page) => page.name === name) ? name : 'chat';
};

// {state: 'loading' | 'ready' | 'offline' | 'draining' | 'locked', progress, models, model, maxLength}
function useServer() {
  const [server, setServer] = useState({ state: 'loading', progress: null });
  const [attempt, setAttempt] = useState(0);
  const [wanted, setWanted] = useState(() => local.getItem('spate.model'));
  useEffect(() => {
    let timer;
    let ended = false;
    async function look() {
      let next;
      try {
        const response = await fetch('health', { cache: 'no-store' });
        const health = await response.json();
        if (response.ok) {
          next = { state: 'ready', models: (await getJson('v1/models')).data };
        } else {
          next = { state: health.status === 'loading' ? 'loading' : 'draining', progress: health.progress };
        }
      } catch (error) {
        next = { state: error.status === 401 ? 'locked' : 'offline' };
      }
      if (ended) return;
      setServer((old) => ({ models: old.models, ...next }));
      timer = setTimeout(look, next.state === 'ready' ? 10000 : 1000);
    }
    look();
    return () => { ended = true; clearTimeout(timer); };
  }, [attempt]);
  const models = server.models || [];
  const model = models.find((each) => each.id === wanted) || models[0];
  const choose = (name) => { local.setItem('spate.model', name); setWanted(name); };
  return [{ ...server, models, model: model?.id, maxLength: model?.max_model_len }, () => setAttempt((n) => n + 1), choose];
}

function KeyDialog({ wasWrong, onDone }) {
  const [key, setKey] = useState('');
  const submit = (event) => {
    event.preventDefault();
    setApiKey(key.trim());
    onDone();
  };
  return (
    <Dialog title={t('apiKey')} onClose={onDone} kind="narrow">
      <form onSubmit={submit}>
        <p id="key-hint">{wasWrong ? t('wrongKey') : t('apiKeyHint')}</p>
        <input type="password" class="text-input" autocomplete="off" autofocus aria-label={t('apiKey')} aria-describedby="key-hint" value={key} onInput={(event) => setKey(event.currentTarget.value)} />
        <div class="dialog-actions"><button class="button primary" type="submit" disabled={!key.trim()}>{t('save')}</button></div>
      </form>
    </Dialog>
  );
}

function KeyboardDialog({ onClose }) {
  const rows = [['Enter', 'keySend'], ['Shift Enter', 'keyLine'], ['Esc', 'keyStop'], ['↑', 'keyEdit'], ['Alt N', 'keyNew'], ['/', 'keyFocus'], [`Alt 1…${pages.length}`, 'keyPages'], ['?', 'keyHelp']];
  return (
    <Dialog title={t('keyboard')} onClose={onClose} kind="narrow">
      <dl class="keys">{rows.map(([keys, text]) => <div><dt>{keys.split(' ').map((key) => <kbd>{key}</kbd>)}</dt><dd>{t(text)}</dd></div>)}</dl>
    </Dialog>
  );
}

function ModelChip({ server, onChoose }) {
  return (
    <span class={`model-chip ${server.state}`} title={server.model || ''}>
      <i aria-hidden="true" />
      {server.models.length > 1
        ? <select aria-label={t('model')} value={server.model} onChange={(event) => onChoose(event.currentTarget.value)}>{server.models.map(({ id }) => <option value={id}>{id}</option>)}</select>
        : server.model || '…'}
    </span>
  );
}

function ServerBanner({ server }) {
  if (server.state === 'ready' || server.state === 'locked') return null;
  if (server.state === 'loading' && server.progress === null) return null;
  const percent = Math.round((server.progress || 0) * 100);
  const text = server.state === 'loading' ? t('loading', { percent }) : t(server.state);
  return (
    <div class="banner" role="status">
      {text}
      {server.state === 'loading' && <div class="bar"><div style={{ width: `${percent}%` }} /></div>}
    </div>
  );
}

export function App() {
  const [page, setPage] = useState(pageOf);
  const [server, lookAgain, chooseModel] = useServer();
  const [conversations, setConversations] = useState([]);
  const [current, setCurrent] = useState(newConversation);
  const [query, setQuery] = useState('');
  const [dialog, setDialog] = useState(null);
  const [isMenuOpen, setMenuOpen] = useState(false);
  const [, redraw] = useState(0);
  const fileInput = useRef();
  const currentRef = useRef(current);
  currentRef.current = current;

  useEffect(() => {
    loadConversations().then((all) => {
      setConversations(all);
      const wanted = all.find((each) => each.id === location.hash.split('/')[1]);
      if (wanted) setCurrent(wanted);
    }).catch(() => {});  // a private window without storage: conversations live as long as the page
    const hashed = () => setPage(pageOf());
    addEventListener('hashchange', hashed);
    const unkey = onKeyNeeded(() => setDialog((old) => old || 'key'));
    const untab = onOtherTab(async (news) => {
      setConversations(await loadConversations());
      if (news.saved !== currentRef.current.id || currentRef.current.isBusy) return;
      const saved = await loadConversation(news.saved);
      if (saved) setCurrent(saved);
    });
    return () => { removeEventListener('hashchange', hashed); unkey(); untab(); };
  }, []);

  const open = (conversation) => {
    setCurrent(conversation);
    setMenuOpen(false);
    location.hash = `chat/${conversation.id}`;
  };
  const startNew = () => open(newConversation());
  const go = (name) => { location.hash = name === 'chat' ? `chat/${current.id}` : name; setMenuOpen(false); };

  const change = (conversation, { save = true } = {}) => {
    if (conversation.id === currentRef.current.id) setCurrent(conversation);
    if (!save || !Object.keys(conversation.nodes).length) return;
    if (location.hash !== `#chat/${conversation.id}` && conversation.id === currentRef.current.id && pageOf() === 'chat') history.replaceState(null, '', `#chat/${conversation.id}`);
    const { isBusy, ...stored } = conversation;
    setConversations((all) => [stored, ...all.filter((each) => each.id !== stored.id)]);
    saveConversation(stored).catch(() => {});
  };
  const remove = async (id) => {
    setConversations((all) => all.filter((each) => each.id !== id));
    if (id === current.id) startNew();
    await deleteConversation(id).catch(() => {});
  };

  const exportAll = () => {
    const blob = new Blob([JSON.stringify({ format: 'spate-conversations', version: 1, conversations }, null, 1)], { type: 'application/json' });
    const link = Object.assign(document.createElement('a'), { href: URL.createObjectURL(blob), download: 'spate-conversations.json' });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  };
  const importFile = async (event) => {
    const [file] = event.currentTarget.files;
    event.currentTarget.value = '';
    if (!file) return;
    try {
      for (const each of readExport(await file.text())) await saveConversation(each);
      setConversations(await loadConversations());
    } catch {
      setDialog('importFailed');
    }
  };

  useEffect(() => {
    const onKey = (event) => {
      const isTyping = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName);
      if (event.altKey && !event.ctrlKey && !event.metaKey) {
        const number = Number(event.code.replace('Digit', ''));
        if (number >= 1 && number <= pages.length) { event.preventDefault(); go(pages[number - 1].name); }
        if (event.code === 'KeyN') { event.preventDefault(); startNew(); }
      } else if (!isTyping && event.key === '?') {
        setDialog('keyboard');
      }
    };
    addEventListener('keydown', onKey);
    return () => removeEventListener('keydown', onKey);
  });

  const cycleTheme = () => {
    const isDark = getComputedStyle(document.documentElement).colorScheme === 'dark';
    document.documentElement.dataset.theme = isDark ? 'light' : 'dark';
    local.setItem('spate.theme', isDark ? 'light' : 'dark');
    redraw((n) => n + 1);
  };
  const switchLanguage = () => { setLanguage(currentLanguage() === 'zh' ? 'en' : 'zh'); redraw((n) => n + 1); };

  const shown = conversations.filter((each) => !query || JSON.stringify([each.title, ...Object.values(each.nodes).map((node) => node.content)]).toLowerCase().includes(query.toLowerCase()));
  const Page = pages.find((each) => each.name === page).Page;
  return (
    <div class={`frame ${isMenuOpen ? 'menu-open' : ''}`}>
      <a class="skip" href="#content" onClick={(event) => { event.preventDefault(); document.getElementById('content').focus(); }}>{t('skip')}</a>
      <aside class="sidebar" id="sidebar">
        <div class="brand"><img src="ui/icon.svg" alt="" width="26" height="26" /><strong>Spate</strong><span class="grow" /><IconButton icon="close" kind="only-small" label={t('close')} onClick={() => setMenuOpen(false)} /></div>
        <nav aria-label={t('menu')}>
          {pages.map(({ name }) => (
            <a href={`#${name}`} class="nav-link" aria-current={page === name ? 'page' : undefined} onClick={(event) => { event.preventDefault(); go(name); }}><Icon name={name} />{t(name)}</a>
          ))}
        </nav>
        <div class="list-head"><h2>{t('conversations')}</h2><IconButton icon="plus" label={t('newChat')} onClick={startNew} /></div>
        {conversations.length > 5 && <input type="search" class="text-input search" placeholder={t('search')} aria-label={t('search')} value={query} onInput={(event) => setQuery(event.currentTarget.value)} />}
        <ul class="conversations">
          {shown.map((each) => (
            <li class={each.id === current.id && page === 'chat' ? 'is-current' : ''}>
              <button type="button" class="conversation" onClick={() => open(each)}>{each.title || t('untitled')}</button>
              <IconButton icon="trash" kind="quiet" label={`${t('remove')}: ${each.title || t('untitled')}`} onClick={() => remove(each.id)} />
            </li>
          ))}
        </ul>
        <div class="side-foot">
          <IconButton icon="download" label={t('exportAll')} onClick={exportAll} disabled={!conversations.length} />
          <IconButton icon="upload" label={t('importFile')} onClick={() => fileInput.current.click()} />
          <input ref={fileInput} type="file" accept="application/json" hidden aria-label={t('importFile')} onChange={importFile} />
          <span class="grow" />
          <IconButton icon="key" label={t('apiKey')} onClick={() => setDialog('key')} />
          <IconButton icon="globe" label={t('language')} onClick={switchLanguage} />
          <IconButton icon="sun" label={t('theme')} onClick={cycleTheme} />
          <IconButton icon="help" label={t('keyboard')} onClick={() => setDialog('keyboard')} />
        </div>
      </aside>
      <div class="scrim" onClick={() => setMenuOpen(false)} />
      <main id="content" tabIndex={-1}>
        <header class="top">
          <IconButton icon="menu" kind="only-small" label={t('menu')} aria-controls="sidebar" aria-expanded={isMenuOpen} onClick={() => setMenuOpen(true)} />
          <h1>{page === 'chat' ? current.title || t('untitled') : t(page)}</h1>
          <ModelChip server={server} onChoose={chooseModel} />
        </header>
        <ServerBanner server={server} />
        {page === 'chat' ? <Chat key={current.id} conversation={current} server={server} onChange={change} /> : <Page server={server} />}
      </main>
      {dialog === 'key' && <KeyDialog wasWrong={Boolean(apiKey()) && server.state === 'locked'} onDone={() => { setDialog(null); lookAgain(); }} />}
      {dialog === 'keyboard' && <KeyboardDialog onClose={() => setDialog(null)} />}
      {dialog === 'importFailed' && <Dialog title={t('importFile')} kind="narrow" onClose={() => setDialog(null)}><p>{t('importFailed')}</p></Dialog>}
    </div>
  );
}
