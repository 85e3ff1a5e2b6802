// TeX to MathML. Temml's text is parsed apart from the document and copied element by element: only MathML's own names
// and a few attributes come through.
import temml from 'temml';

const kMathMl = 'http://www.w3.org/1998/Math/MathML';
const elements = new Set(('math semantics mrow mi mn mo ms mtext mspace mfrac msqrt mroot mstyle merror mpadded mphantom menclose ' +
  'msub msup msubsup munder mover munderover mmultiscripts mtable mtr mtd mprescripts none').split(' '));
const attributes = new Set(('display mathvariant stretchy fence separator form lspace rspace linethickness width height depth voffset minsize maxsize ' +
  'columnalign rowspacing columnspacing scriptlevel displaystyle notation accent accentunder movablelimits symmetric largeop columnspan').split(' '));
const kMaxLength = 4000;

function copy(node) {
  if (node.nodeType === Node.TEXT_NODE) return node.textContent;
  const name = node.localName;
  if (node.nodeType !== Node.ELEMENT_NODE || !elements.has(name)) return null;
  const props = {};
  for (const { name: attribute, value } of node.attributes) {
    if (attributes.has(attribute)) props[attribute] = value;
  }
  const Tag = name;
  return <Tag {...props}>{[...node.childNodes].map(copy)}</Tag>;
}

const cache = new Map();

export function Tex({ tex, display }) {
  const key = (display ? '$$' : '$') + tex;
  if (!cache.has(key)) {
    if (cache.size > 500) cache.clear();
    cache.set(key, render(tex, display));
  }
  return cache.get(key) || <code class="tex-source">{tex}</code>;
}

function render(tex, display) {
  if (tex.length > kMaxLength) return null;
  try {
    const text = temml.renderToString(tex, { displayMode: display, throwOnError: true, trust: false, strict: false, maxExpand: 200, maxSize: [20, 20], annotate: false });
    // Style attributes would be dropped below; the page's policy reports them when they are parsed.
    const root = new DOMParser().parseFromString(text.replace(/ style="[^"]*"/g, ''), 'text/html').body.firstElementChild;
    return root && root.namespaceURI === kMathMl ? copy(root) : null;
  } catch {
    return null;
  }
}
