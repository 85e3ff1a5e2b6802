// The Metrics page: fifteen minutes of history, kept by the server.
import { useState } from 'preact/hooks';
import { Canvas } from './canvas.jsx';
import { useFeed } from './feed.js';
import { t } from './i18n.js';
import { formatBytes, formatCount, formatSeconds } from './widgets.jsx';

const kSeconds = 900;
// Columns of a point: 0 time, 1 prompt tok/s, 2 generated tok/s, 3 running, 4 waiting, 5 KV usage, 6 hit rate, 7 preemptions,
// 8 and 9 TTFT p50 and p95, 10 and 11 time between tokens p50 and p95, 12 step time, 13 resident bytes.
const perSecond = (value) => formatCount(Math.round(value));
const percent = (value) => `${(value * 100).toFixed(0)} %`;
const charts = () => [
  { title: t('throughput'), unit: 'tok/s', lines: [[2, 'decode', t('generated')], [1, 'prefill', t('prompt')]], format: perSecond },
  { title: t('queue'), lines: [[3, 'decode', t('running')], [4, 'wasted', t('waiting')]], format: perSecond },
  { title: t('ttft'), lines: [[8, 'decode', 'p50'], [9, 'wasted', 'p95']], format: formatSeconds, isSparse: true },
  { title: t('itl'), lines: [[10, 'decode', 'p50'], [11, 'wasted', 'p95']], format: formatSeconds, isSparse: true },
  { title: t('kvInUse'), lines: [[5, 'decode', t('kvInUse')]], format: percent, max: 1 },
  { title: t('hitRate'), lines: [[6, 'cached', t('prefixHits')]], format: percent, max: 1, isSparse: true },
  { title: t('stepTime'), lines: [[12, 'prefill', t('stepTime')]], format: formatSeconds, isSparse: true },
  { title: t('preemptions'), lines: [[7, 'wasted', t('preemptions')]], format: perSecond },
  { title: `${t('memory')} (${t('process')})`, lines: [[13, 'prefill', 'RSS']], format: formatBytes },
];

function Chart({ chart, history }) {
  const [hover, setHover] = useState(null);
  const newest = history.length ? history[history.length - 1][0] : 0;
  const top = chart.max || Math.max(1e-9, ...chart.lines.flatMap(([column]) => history.map((point) => point[column] || 0))) * 1.1;
  const draw = (g, width, height, colour) => {
    const x = (point) => width - ((newest - point[0]) / kSeconds) * width;
    const y = (value) => height - 2 - ((height - 6) * value) / top;
    g.strokeStyle = colour('line');
    g.lineWidth = 1;
    for (const share of [0, 0.5, 1]) {
      g.beginPath();
      g.moveTo(0, y(top * share));
      g.lineTo(width, y(top * share));
      g.stroke();
    }
    for (const [column, name] of chart.lines) {
      g.strokeStyle = g.fillStyle = colour(name);
      g.lineWidth = 1.6;
      g.lineJoin = 'round';
      g.beginPath();
      let isOpen = false;
      for (const point of history) {
        if (point[column] === null) { isOpen = isOpen && chart.isSparse; continue; }
        if (isOpen) g.lineTo(x(point), y(point[column]));
        else { g.moveTo(x(point), y(point[column])); if (chart.isSparse) g.lineTo(x(point) + 1, y(point[column])); }
        isOpen = true;
      }
      g.stroke();
    }
    if (hover) {
      g.fillStyle = colour('faint');
      g.fillRect(x(hover), 0, 1, height);
    }
  };
  const move = (at, _, width) => {
    const time = newest - ((width - at) / width) * kSeconds;
    const nearest = history.reduce((best, point) => (best && Math.abs(best[0] - time) < Math.abs(point[0] - time) ? best : point), null);
    setHover(nearest && Math.abs(nearest[0] - time) < 15 ? nearest : null);
  };
  const lastOf = (column) => { for (let i = history.length - 1; i >= 0; --i) if (history[i][column] !== null) return history[i][column]; return null; };
  const shown = (column) => { const value = hover ? hover[column] : lastOf(column); return value === null || value === undefined ? '–' : chart.format(value); };
  return (
    <section class="panel chart" aria-label={chart.title}>
      <header><h2>{chart.title}{chart.unit && <small> {chart.unit}</small>}</h2><ul class="legend">{chart.lines.map(([column, name, text]) => <li><i class={`dot-${name}`} />{text} <b>{shown(column)}</b></li>)}</ul></header>
      <Canvas draw={draw} height={110} label={`${chart.title}: ${chart.lines.map(([column, , text]) => `${text} ${shown(column)}`).join(', ')}`} onMove={move} onLeave={() => setHover(null)} />
      <p class="axis"><span>{hover ? new Date(hover[0] * 1000).toLocaleTimeString() : '−15 min'}</span><span>{chart.format(top)}</span></p>
    </section>
  );
}

export function Metrics({ server }) {
  const { picture, reason } = useFeed(server.model);
  if (!picture) return <div class="page"><p class="dim" role="status">{reason || t('paused')}</p></div>;
  return (
    <div class="page">
      {!picture.isConnected && <div class="banner in-page" role="status">{reason || t('paused')}</div>}
      <p class="dim">{t('last15')} · <a href="metrics" target="_blank" rel="noopener">/metrics</a></p>
      <div class="charts">{charts().map((chart) => <Chart key={chart.title} chart={chart} history={picture.history} />)}</div>
    </div>
  );
}
