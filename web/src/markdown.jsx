// Markdown to elements. Nothing is ever parsed as HTML: text of a model can only become text nodes of the elements that
// are made here, and links lead to http, https or mailto. Images become links, so that no request leaves the page.
import { memo } from './memo.js';
import { highlight } from './highlight.jsx';
import { Tex } from './math.jsx';
import { CopyButton } from './widgets.jsx';

const kMaxDepth = 12;  // of quotes and lists
const kMaxColumns = 100, kMaxCells = 10000;  // of a table; what is larger is text

function safeUrl(url) {
  try {
    const parsed = new URL(url);
    return ['http:', 'https:', 'mailto:'].includes(parsed.protocol) ? parsed.href : null;
  } catch {
    return null;
  }
}

function Link({ url, children }) {
  const href = safeUrl(url);
  return href ? <a href={href} target="_blank" rel="noopener noreferrer nofollow">{children}</a> : <span>{children}</span>;
}

// ---- inline ----

const inlineRules = [
  [/\\([\\`*_{}[\]()#+\-.!|~$<>])/y, (m) => m[1]],
  [/(`+)([^`]|[^`][^]*?[^`])\1(?!`)/y, (m) => <code>{m[2].trim() || m[2]}</code>],
  [/\$\$([^$]+?)\$\$/y, (m) => <Tex tex={m[1]} display />],
  [/\\\[([^]+?)\\\]/y, (m) => <Tex tex={m[1]} display />],
  [/\\\(([^]+?)\\\)/y, (m) => <Tex tex={m[1]} />],
  [/\$(?![\s\d$])((?:\\.|[^$\n\\])+?)(?<!\s)\$(?![\d\w])/y, (m) => <Tex tex={m[1]} />],
  [/!\[([^\]]*)\]\(\s*<?([^\s<>)]+)>?[^)]*\)/y, (m) => <Link url={m[2]}>{m[1] || m[2]}</Link>],
  [/\[((?:\\.|[^[\]\\]|\[[^\]]*\])*)\]\(\s*<?((?:[^\s<>()]|\([^\s()]*\))+)>?(?:\s+"[^"]*")?\s*\)/y, (m, depth) => <Link url={m[2]}>{inline(m[1], depth + 1)}</Link>],
  [/<((?:https?:\/\/|mailto:)[^\s<>]+)>/y, (m) => <Link url={m[1]}>{m[1]}</Link>],
  [/https?:\/\/[^\s<>"'`)\]]+[^\s<>"'`)\].,;:!?*_]/y, (m) => <Link url={m[0]}>{m[0]}</Link>],
  [/\*\*\*(?!\s)([^]+?)(?<!\s)\*\*\*/y, (m, depth) => <strong><em>{inline(m[1], depth + 1)}</em></strong>],
  [/\*\*(?!\s)([^]+?)(?<!\s)\*\*(?!\*)/y, (m, depth) => <strong>{inline(m[1], depth + 1)}</strong>],
  [/\*(?![\s*])([^]+?)(?<![\s*])\*(?!\*)/y, (m, depth) => <em>{inline(m[1], depth + 1)}</em>],
  [/__(?!\s)([^]+?)(?<!\s)__(?!\w)/y, (m, depth, before) => (/\w/.test(before) ? null : <strong>{inline(m[1], depth + 1)}</strong>)],
  [/_(?![\s_])([^]+?)(?<![\s_])_(?!\w)/y, (m, depth, before) => (/\w/.test(before) ? null : <em>{inline(m[1], depth + 1)}</em>)],
  [/~~(?!\s)([^]+?)(?<!\s)~~/y, (m, depth) => <del>{inline(m[1], depth + 1)}</del>],
  [/<br\s*\/?>/y, () => <br />],
  [/(?: {2,}|\\)?\n/y, () => <br />],
];
const kInlineStarts = new Set('\\`$![<h*_~\n '.split(''));

export function inline(text, depth = 0) {
  // A run of emphasis marks may be tried from each of its places: long ones are text.
  if (depth > kMaxDepth || text.length > 20000) return text;
  const out = [];
  let plain = '';
  for (let at = 0; at < text.length;) {
    let made = null, length = 0;
    if (kInlineStarts.has(text[at])) {
      for (const [rule, make] of inlineRules) {
        rule.lastIndex = at;
        const match = rule.exec(text);
        made = match && make(match, depth, text[at - 1] || '');
        if (made !== null && made !== undefined) {
          length = match[0].length;
          break;
        }
        made = null;
      }
    }
    if (made === null) {
      plain += text[at++];
      continue;
    }
    at += length;
    if (typeof made === 'string') {
      plain += made;
      continue;
    }
    if (plain) out.push(plain);
    plain = '';
    out.push(made);
  }
  if (plain) out.push(plain);
  return out;
}

// ---- blocks ----

// Every rule reads a line once, whatever stands in it: two repeats that may share characters would take the square of its
// length.
const kFence = /^ {0,3}(`{3,}(?=[^`]*$)|~{3,}(?=[^~]|$))\s*([^\s`]*)/;
const kHeading = /^ {0,3}(#{1,6})\s+(.*)/;
const kRule = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const kItem = /^(\s*)([-*+]|\d{1,9}[.)])(\s+|$)(.*)$/;
const kTableRule = /^\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?$/;  // of a trimmed line
const isTable = (line, rule) => line.includes('|') && rule.includes('-') && kTableRule.test(rule.trim()) && cells(rule).length <= kMaxColumns;
const headingText = (text) => text.trimEnd().replace(/(^|\s)#+$/, '').trimEnd();

const startsBlock = (line) => kFence.test(line) || kHeading.test(line) || kRule.test(line) || /^ {0,3}>/.test(line) ||
  /^\s*([-*+]|\d{1,9}[.)])\s+\S/.test(line) || /^\s*(\$\$|\\\[)/.test(line);

// Plain data, {type, ...}: so that a block whose source did not change is not made anew while an answer grows.
export function parseBlocks(text, depth = 0) {
  const lines = text.replace(/\r\n?/g, '\n').split('\n');
  const blocks = [];
  for (let i = 0; i < lines.length;) {
    const line = lines[i];
    let match;
    if (!line.trim()) {
      ++i;
    } else if ((match = kFence.exec(line))) {
      const close = new RegExp(`^ {0,3}${match[1][0]}{${match[1].length},}\\s*$`);
      const begin = ++i;
      while (i < lines.length && !close.test(lines[i])) ++i;
      blocks.push({ type: 'code', language: match[2], text: lines.slice(begin, i).join('\n'), isOpen: i === lines.length });
      ++i;
    } else if ((match = /^\s*(\$\$|\\\[)/.exec(line))) {
      const end = match[1] === '$$' ? '$$' : '\\]';
      const begin = i;
      const hasEnd = (at) => (at === begin ? lines[at].trimStart().slice(2) : lines[at]).includes(end);
      while (i < lines.length && !hasEnd(i)) ++i;
      const source = lines.slice(begin, i + 1).join('\n').trim();
      const inner = /^(?:\$\$|\\\[)([^]*?)(?:\$\$|\\\])$/.exec(source);
      blocks.push(inner ? { type: 'math', tex: inner[1].trim() } : { type: 'text', text: source });
      ++i;
    } else if ((match = kHeading.exec(line))) {
      blocks.push({ type: 'heading', level: match[1].length, text: headingText(match[2]) });
      ++i;
    } else if (kRule.test(line)) {
      blocks.push({ type: 'rule' });
      ++i;
    } else if (/^ {0,3}>/.test(line) && depth < kMaxDepth) {
      const begin = i;
      while (i < lines.length && (/^ {0,3}>/.test(lines[i]) || (lines[i].trim() && !startsBlock(lines[i])))) ++i;
      const inner = lines.slice(begin, i).map((each) => each.replace(/^ {0,3}> ?/, '')).join('\n');
      blocks.push({ type: 'quote', blocks: parseBlocks(inner, depth + 1) });
    } else if ((match = kItem.exec(line)) && depth < kMaxDepth) {
      i = parseList(lines, i, match, depth, blocks);
    } else if (i + 1 < lines.length && isTable(line, lines[i + 1])) {
      const begin = i;
      const align = cells(lines[begin + 1]).map(alignment);
      const end = begin + 2 + Math.floor(kMaxCells / align.length);
      i += 2;
      while (i < Math.min(end, lines.length) && lines[i].trim() && lines[i].includes('|')) ++i;
      blocks.push({ type: 'table', rows: [lines[begin], ...lines.slice(begin + 2, i)].map(cells), align });
    } else {
      const begin = i++;
      while (i < lines.length && lines[i].trim() && !startsBlock(lines[i])) ++i;
      blocks.push({ type: 'text', text: lines.slice(begin, i).join('\n').trim() });
    }
  }
  return blocks;
}

function parseList(lines, i, first, depth, blocks) {
  const isOrdered = /\d/.test(first[2]);
  const indent = first[1].length;
  const items = [];
  while (i < lines.length) {
    const match = kItem.exec(lines[i]);
    if (!match || match[1].length > indent + 1 || match[1].length < indent || /\d/.test(match[2]) !== isOrdered || kRule.test(lines[i])) break;
    const width = match[1].length + match[2].length + Math.min(match[3].length || 1, 4);
    const inner = [match[4]];
    for (++i; i < lines.length; ++i) {
      const lead = /^\s*/.exec(lines[i])[0].length;
      if (!lines[i].trim()) {
        // Blank lines stay inside when what follows is indented.
        let next = i;
        while (next < lines.length && !lines[next].trim()) ++next;
        if (next === lines.length || /^\s*/.exec(lines[next])[0].length < Math.min(width, indent + 2)) break;
        for (; i + 1 < next; ++i) inner.push('');
        inner.push('');
      } else if (lead >= Math.min(width, indent + 2)) {
        inner.push(lines[i].slice(Math.min(lead, width)));
      } else if (kItem.test(lines[i]) || startsBlock(lines[i])) {
        break;
      } else {
        inner.push(lines[i]);
      }
    }
    items.push(parseBlocks(inner.join('\n'), depth + 1));
    while (i < lines.length && !lines[i].trim() && kItem.test(lines[i + 1] || '')) ++i;
  }
  blocks.push({ type: 'list', isOrdered, start: parseInt(first[2], 10) || 1, items });
  return i;
}

const cells = (line) => line.trim().replace(/^\||\|$/g, '').split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll('\\|', '|'));
const alignment = (rule) => (/^:-+:$/.test(rule) ? 'center' : /-:$/.test(rule) ? 'right' : 'left');

function CodeBlock({ language, text }) {
  return (
    <figure class="code">
      <figcaption><span>{language || 'text'}</span><CopyButton text={text} /></figcaption>
      <pre tabIndex={0}><code>{highlight(text, language)}</code></pre>
    </figure>
  );
}

function ListItem({ blocks }) {
  const task = blocks[0]?.type === 'text' && /^\[([ xX])\]\s+/.exec(blocks[0].text);
  if (task) blocks = [{ ...blocks[0], text: blocks[0].text.slice(task[0].length) }, ...blocks.slice(1)];
  const isTight = blocks.length === 1 || (blocks.length === 2 && blocks[1].type === 'list');
  return (
    <li class={task ? 'task' : undefined}>
      {task && <input type="checkbox" checked={task[1] !== ' '} disabled />}
      {blocks.map((block, i) => (isTight && i === 0 && block.type === 'text' ? <span>{inline(block.text)}</span> : <Block block={block} />))}
    </li>
  );
}

const Block = memo(function Block({ block }) {
  switch (block.type) {
    case 'code': return <CodeBlock language={block.language} text={block.text} />;
    case 'math': return <div class="math-block" tabIndex={0}><Tex tex={block.tex} display /></div>;
    case 'heading': {
      const Heading = `h${Math.min(6, block.level + 1)}`;
      return <Heading>{inline(block.text)}</Heading>;
    }
    case 'rule': return <hr />;
    case 'quote': return <blockquote>{block.blocks.map((each) => <Block block={each} />)}</blockquote>;
    case 'list': {
      const items = block.items.map((blocks) => <ListItem blocks={blocks} />);
      return block.isOrdered ? <ol start={block.start}>{items}</ol> : <ul>{items}</ul>;
    }
    case 'table': return <Table {...block} />;
    default: return <p>{inline(block.text)}</p>;
  }
}, (a, b) => JSON.stringify(a.block) === JSON.stringify(b.block));

function Table({ rows, align }) {
  const row = (values, Cell) => <tr>{align.map((each, i) => <Cell class={`align-${each}`}>{inline(values[i] || '')}</Cell>)}</tr>;
  return (
    <div class="table-wrap" tabIndex={0}>
      <table><thead>{row(rows[0], 'th')}</thead><tbody>{rows.slice(1).map((each) => row(each, 'td'))}</tbody></table>
    </div>
  );
}

export function Markdown({ text }) {
  return <div class="markdown">{parseBlocks(text).map((block) => <Block block={block} />)}</div>;
}
