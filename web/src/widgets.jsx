// Small parts that all pages use.
import { useEffect, useRef, useState } from 'preact/hooks';
import { t } from './i18n.js';

const paths = {
  chat: 'M4 5h16v11H9l-5 4z', live: 'M3 12h4l3-8 4 16 3-8h4', metrics: 'M4 20V4M4 20h16M8 16v-4M12 16V8M16 16v-6',
  model: 'M12 3l8 4.5v9L12 21l-8-4.5v-9zM12 12l8-4.5M12 12v9M12 12L4 7.5', playground: 'M5 4h14M9 4v6l-5 9h16l-5-9V4', log: 'M4 6h16M4 10h10M4 14h16M4 18h7',
  plus: 'M12 5v14M5 12h14', send: 'M12 19V5M6 11l6-6 6 6', stop: 'M7 7h10v10H7z', copy: 'M9 9h11v11H9zM5 15H4V4h11v1', check: 'M5 12l5 5L20 7',
  edit: 'M4 20h4L19 9l-4-4L4 16zM13 7l4 4', retry: 'M20 11a8 8 0 10-2.3 6M20 5v6h-6', trash: 'M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13', left: 'M15 5l-7 7 7 7',
  right: 'M9 5l7 7-7 7', sliders: 'M4 7h10M18 7h2M4 17h2M10 17h10M16 5v4M8 15v4', code: 'M8 7l-5 5 5 5M16 7l5 5-5 5', menu: 'M4 6h16M4 12h16M4 18h16',
  sun: 'M12 8a4 4 0 100 8 4 4 0 000-8zM12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.5 1.5M17.5 17.5L19 19M5 19l1.5-1.5M17.5 6.5L19 5', moon: 'M20 14.5A8.5 8.5 0 019.5 4 8.5 8.5 0 1020 14.5z',
  close: 'M6 6l12 12M18 6L6 18', key: 'M15 14a5 5 0 10-4.6-3L4 17.4V20h3v-2h2v-2h2l1.6-1.6A5 5 0 0015 14zM16 8h.01', download: 'M12 4v11M7 11l5 5 5-5M5 20h14', upload: 'M12 16V5M7 9l5-5 5 5M5 20h14',
  chevron: 'M6 9l6 6 6-6', tool: 'M14 6a4 4 0 015-1l-3 3 1 2 2 1 3-3a4 4 0 01-5 5l-7 7-3-3 7-7a4 4 0 010-4z', help: 'M9 9a3 3 0 116 0c0 2-3 2-3 4.5M12 17.5h.01', globe: 'M12 3a9 9 0 100 18 9 9 0 000-18zM3 12h18M12 3c3 3 3 15 0 18M12 3c-3 3-3 15 0 18',
};

export function Icon({ name }) {
  return <svg class="icon" viewBox="0 0 24 24" aria-hidden="true"><path d={paths[name]} /></svg>;
}

export function IconButton({ icon, label, onClick, kind = '', ...rest }) {
  return <button type="button" class={`icon-button ${kind}`} aria-label={label} title={label} onClick={onClick} {...rest}><Icon name={icon} /></button>;
}

export function CopyButton({ text, label }) {
  const [done, setDone] = useState(false);
  const copy = async () => {
    await copyText(typeof text === 'function' ? text() : text);
    setDone(true);
    setTimeout(() => setDone(false), 1500);
  };
  return <IconButton icon={done ? 'check' : 'copy'} label={done ? t('copied') : label || t('copy')} onClick={copy} />;
}

// navigator.clipboard is absent on pages of plain HTTP that are not on localhost. What is outside of an open dialog
// cannot be selected.
export async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = document.createElement('textarea');
  area.value = text;
  (document.querySelector('dialog[open]') || document.body).append(area);
  area.select();
  document.execCommand('copy');
  area.remove();
}

export function Dialog({ title, onClose, children, kind = '' }) {
  const ref = useRef();
  useEffect(() => { ref.current.showModal(); }, []);
  return (
    <dialog ref={ref} class={kind} aria-label={title} onClose={onClose} onClick={(event) => event.target === ref.current && ref.current.close()}>
      <header><h2>{title}</h2><IconButton icon="close" label={t('close')} onClick={() => ref.current.close()} /></header>
      <div class="dialog-body">{children}</div>
    </dialog>
  );
}

// A token's text, or its bytes where they are a part of a character.
export const pieceText = (piece) => (typeof piece === 'string' ? piece : piece.map((byte) => `⟨${byte.toString(16).toUpperCase().padStart(2, '0')}⟩`).join(''));

export const formatCount = (n) => (n >= 1e9 ? `${(n / 1e9).toFixed(2)}B` : n >= 1e6 ? `${(n / 1e6).toFixed(2)}M` : n >= 1e4 ? `${(n / 1e3).toFixed(1)}k` : String(n));
export const formatBytes = (n) => (n >= 2 ** 30 ? `${(n / 2 ** 30).toFixed(2)} GiB` : n >= 2 ** 20 ? `${(n / 2 ** 20).toFixed(1)} MiB` : `${(n / 1024).toFixed(1)} KiB`);
export const formatSeconds = (s) => (s >= 100 ? `${Math.floor(s / 60)}m ${Math.floor(s % 60)}s` : s >= 1 ? `${s.toFixed(s < 10 ? 2 : 1)} s` : s >= 0.001 ? `${(s * 1000).toFixed(s < 0.01 ? 1 : 0)} ms` : `${(s * 1e6).toFixed(0)} µs`);
