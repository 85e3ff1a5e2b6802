// The Live page: what the engine does now.
import { useState } from 'preact/hooks';
import { ofModel, postJson } from './api.js';
import { Canvas } from './canvas.jsx';
import { useFeed } from './feed.js';
import { t } from './i18n.js';
import { formatCount, formatSeconds, IconButton } from './widgets.jsx';

const kFirstRequestCell = 3;  // cells of the map: 0 free, 1 cached, 2 shared, then 3 + request id
const parts = [['wasted', 5], ['decode', 3], ['prefill', 2], ['cached', 4]];  // of a step, from the top down
const kMaxSteps = 300;

// Neighbouring ids get hues far apart.
const hueOf = (id) => (id * 137.508) % 360;
const colourOf = (id, isDark) => `hsl(${hueOf(id)} ${isDark ? '62% 62%' : '58% 50%'})`;
const isDarkNow = () => getComputedStyle(document.documentElement).colorScheme === 'dark';

export function Tile({ label, value, note }) {
  return <div class="tile"><span>{label}</span><strong>{value}</strong>{note && <small>{note}</small>}</div>;
}

function Legend({ entries }) {
  return <ul class="legend">{entries.map(([name, text]) => <li><i class={`dot-${name}`} />{text}</li>)}</ul>;
}

// A bar of a pixel or two says nothing: a narrow chart has fewer steps.
const numStepsShown = (width) => Math.min(kMaxSteps, Math.floor(width / 3));

function Steps({ steps }) {
  const [hover, setHover] = useState(null);
  const draw = (g, width, height, colour) => {
    const numShown = numStepsShown(width);
    const shown = steps.slice(-numShown);
    const tallest = Math.max(1, ...shown.map((step) => step[2] + step[3] + step[4] + step[5]));
    // Decode steps of a few tokens stay visible beside prompts of thousands.
    const scale = (tokens) => (height - 4) * Math.sqrt(tokens / tallest);
    const each = width / numShown;
    shown.forEach((step, i) => {
      const left = Math.round(width - (shown.length - i) * each), right = Math.round(width - (shown.length - i - 1) * each);
      const total = step[2] + step[3] + step[4] + step[5];
      let y = height - scale(total);
      for (const [name, column] of parts) {
        const tall = total ? (scale(total) * step[column]) / total : 0;
        g.fillStyle = colour(name);
        g.fillRect(left, y, Math.max(1, right - left - 1), tall);
        y += tall;
      }
    });
    g.fillStyle = colour('line');
    g.fillRect(0, height - 1, width, 1);
  };
  const step = hover !== null && steps[hover];
  return (
    <section class="panel" aria-label={t('steps', { n: steps.length })}>
      <header><h2>{t('steps', { n: steps.length })}</h2><Legend entries={['prefill', 'decode', 'cached', 'wasted'].map((name) => [name, t(name).toLowerCase()])} /></header>
      <Canvas draw={draw} height={130} label={t('stepsHint')} onLeave={() => setHover(null)}
        onMove={(x, y, width) => { const i = steps.length - Math.ceil(((width - x) / width) * numStepsShown(width)); setHover(i >= 0 && i < steps.length ? i : null); }} />
      <p class="hover-line" role="status">{step ? `#${step[0]} · ${step[1]} × · ${t('prefill')} ${step[2]} · ${t('decode')} ${step[3]} · ${t('cached')} ${step[4]} · ${t('wasted')} ${step[5]} · ${step[6].toFixed(2)} ms` : t('stepsHint')}</p>
    </section>
  );
}

function KvMap({ picture, marked, onMark }) {
  const { cells, num_blocks: numBlocks, num_blocks_each: each, kv_block_size: size } = picture;
  const [hover, setHover] = useState(null);
  const layout = (width) => {
    const side = Math.max(5, Math.min(16, Math.floor(Math.sqrt((width * 170) / cells.length))));
    const columns = Math.max(1, Math.floor(width / side));
    return { side, columns, rows: Math.ceil(cells.length / columns) };
  };
  const [width, setWidth] = useState(900);
  const { side, rows } = layout(width);
  const draw = (g, w, h, colour) => {
    if (Math.abs(w - width) > 1) setWidth(w);
    const { side: edge, columns } = layout(w);
    const isDark = isDarkNow();
    cells.forEach((cell, i) => {
      const x = (i % columns) * edge, y = Math.floor(i / columns) * edge;
      g.globalAlpha = marked !== null && cell !== marked + kFirstRequestCell ? 0.25 : 1;
      g.fillStyle = cell === 0 ? colour('line') : cell === 1 ? colour('faint') : cell === 2 ? colour('text') : colourOf(cell - kFirstRequestCell, isDark);
      if (cell === 0) g.globalAlpha *= 0.55;
      g.beginPath();
      g.roundRect(x + 0.5, y + 0.5, edge - 1.5, edge - 1.5, Math.min(3, edge / 4));
      g.fill();
    });
    g.globalAlpha = 1;
  };
  const whose = (cell) => (cell === 0 ? t('free') : cell === 1 ? t('cached') : cell === 2 ? t('shared') : `${t('request1')} ${cell - kFirstRequestCell}`);
  const move = (x, y, w) => {
    const { side: edge, columns } = layout(w);
    const i = Math.floor(y / edge) * columns + Math.floor(x / edge);
    const isCell = x < columns * edge && i >= 0 && i < cells.length;
    setHover(isCell ? i : null);
    onMark(isCell && cells[i] >= kFirstRequestCell ? cells[i] - kFirstRequestCell : null);
  };
  const blocksOf = (i) => (each === 1 ? `${i}` : `${i * each}–${Math.min(numBlocks, (i + 1) * each) - 1}`);
  return (
    <section class="panel" aria-label={t('kvMap')}>
      <header><h2>{t('kvMap')}</h2><ul class="legend"><li><i class="dot-request" />{t('request1')}</li><li><i class="dot-shared" />{t('shared')}</li><li><i class="dot-faint" />{t('cached').toLowerCase()}</li><li><i class="dot-free" />{t('free')}</li></ul></header>
      <Canvas draw={draw} height={rows * side} label={t('kvMap')} onMove={move} onLeave={() => { setHover(null); onMark(null); }} />
      <p class="hover-line" role="status" data-testid="whose">{hover !== null ? `${t('blocks')} ${blocksOf(hover)}: ${whose(cells[hover])}` : t('mapHint', { blocks: formatCount(numBlocks), size, each })}</p>
    </section>
  );
}

function Requests({ picture, model, marked, onMark }) {
  const { seqs, num_seqs: numSeqs } = picture;
  const isDark = isDarkNow();
  const progress = (seq) => Math.min(1, seq.computed / Math.max(1, seq.prompt));
  return (
    <section class="panel" aria-label={t('requests')}>
      <header><h2>{t('requests')}</h2></header>
      {!seqs.length ? <p class="dim empty">{t('noRequests')}</p> : (
        <div class="table-wrap plain" tabIndex={0}>
          <table class="requests">
            <thead><tr><th>ID</th><th>{t('phase')}</th><th class="align-right">{t('age')}</th><th class="align-right">{t('prompt')}</th><th class="align-right">{t('cached')}</th><th class="align-right">{t('generated')}</th><th class="align-right">{t('blocks')}</th><th><span class="visually-hidden">{t('abort')}</span></th></tr></thead>
            <tbody>
              {seqs.map((seq) => (
                <tr key={`${seq.id}-${seq.index}`} class={marked === seq.id ? 'is-marked' : ''} onPointerEnter={() => onMark(seq.id)} onPointerLeave={() => onMark(null)}>
                  <td><i class="swatch" style={{ background: seq.phase === 'waiting' ? 'transparent' : colourOf(seq.id, isDark) }} />{seq.id}{seq.index ? `·${seq.index}` : ''}</td>
                  <td><span class={`phase ${seq.phase}`}>{t(seq.phase)}</span>{seq.phase === 'prefill' && <span class="mini-bar"><i style={{ width: `${progress(seq) * 100}%` }} /></span>}</td>
                  <td class="align-right">{formatSeconds(seq.age)}</td>
                  <td class="align-right">{formatCount(seq.prompt)}</td>
                  <td class="align-right">{formatCount(seq.cached)}</td>
                  <td class="align-right">{formatCount(seq.output)}</td>
                  <td class="align-right">{formatCount(seq.blocks)}</td>
                  <td class="align-right"><IconButton icon="close" label={t('abortRequest', { id: seq.id })} onClick={() => postJson(ofModel('debug/abort', model), { id: seq.id }).catch(() => {})} /></td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {numSeqs > seqs.length && <p class="dim empty">{t('more', { n: numSeqs - seqs.length })}</p>}
    </section>
  );
}

export function Live({ server }) {
  const { picture, reason } = useFeed(server.model);
  const [marked, setMarked] = useState(null);
  if (!picture) return <div class="page"><p class="dim" role="status">{reason || t('paused')}</p></div>;
  const { stats, history } = picture;
  const last = history[history.length - 1];
  const rate = (value) => (value >= 100 ? formatCount(Math.round(value)) : value.toFixed(1));
  const hits = stats.prefix_cache_queries ? stats.prefix_cache_hits / stats.prefix_cache_queries : 0;
  return (
    <div class="page">
      {!picture.isConnected && <div class="banner in-page" role="status">{reason || t('paused')}</div>}
      <div class="tiles">
        <Tile label={t('running')} value={stats.num_running} />
        <Tile label={t('waiting')} value={stats.num_waiting} />
        <Tile label={t('tokensOut')} value={rate(last?.[2] || 0)} />
        <Tile label={t('tokensIn')} value={rate(last?.[1] || 0)} />
        <Tile label={t('kvCache')} value={`${(stats.kv_cache_usage * 100).toFixed(1)} %`} />
        <Tile label={t('prefixHits')} value={`${(hits * 100).toFixed(0)} %`} />
        <Tile label={t('preemptions')} value={formatCount(stats.num_preemptions)} />
      </div>
      <Steps steps={picture.steps} />
      <KvMap picture={picture} marked={marked} onMark={setMarked} />
      <Requests picture={picture} model={server.model} marked={marked} onMark={setMarked} />
    </div>
  );
}
