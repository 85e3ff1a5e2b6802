// Colours for code: comments, strings, numbers, keywords and calls of the usual languages. Not a parser; what it gets
// wrong is a colour.

const words = (text) => new Set(text.split(' '));
const keywords = {
  c: words('alignas auto bool break case catch char class concept const consteval constexpr continue co_await co_return default delete do double else enum explicit extern false float for friend if inline int long mutable namespace new noexcept nullptr operator override private protected public requires return short signed sizeof static struct switch template this throw true try typedef typename union unsigned using virtual void volatile while __global__ __device__ __shared__'),
  js: words('as async await break case catch class const continue default delete do else enum export extends false finally for from function if implements import in instanceof interface let new null of private public return static super switch this throw true try type typeof undefined var void while yield'),
  py: words('False None True and as assert async await break case class continue def del elif else except finally for from global if import in is lambda match nonlocal not or pass raise return self try while with yield'),
  sh: words('case do done elif else esac exit export fi for function if in local return set source then trap unset while'),
  go: words('break case chan const continue default defer else error false for func go if import interface int map nil package range return select string struct switch true type var'),
  rs: words('as async await break const continue crate dyn else enum extern false fn for if impl in let loop match mod move mut pub ref return self Self static struct super trait true type unsafe use where while'),
  java: words('abstract boolean break case catch class const continue default do double else enum extends false final finally float for if implements import int interface long new null package private protected public record return static super switch this throw throws true try var void while'),
  sql: words('ADD ALL ALTER AND AS ASC BETWEEN BY CASE CREATE DELETE DESC DISTINCT DROP ELSE END EXISTS FROM FULL GROUP HAVING IN INDEX INNER INSERT INTO IS JOIN KEY LEFT LIKE LIMIT NOT NULL ON OR ORDER OUTER PRIMARY RIGHT SELECT SET TABLE THEN UNION UPDATE VALUES VIEW WHEN WHERE WITH'),
  json: words('true false null'),
};
const families = {
  c: 'c', h: 'c', cc: 'c', cpp: 'c', 'c++': 'c', cxx: 'c', cuda: 'c', cu: 'c', js: 'js', jsx: 'js', javascript: 'js', ts: 'js',
  tsx: 'js', typescript: 'js', py: 'py', python: 'py', sh: 'sh', bash: 'sh', shell: 'sh', zsh: 'sh', console: 'sh', go: 'go', golang: 'go',
  rs: 'rs', rust: 'rs', java: 'java', kotlin: 'java', cs: 'java', csharp: 'java', sql: 'sql', json: 'json', yaml: 'yaml', yml: 'yaml', toml: 'yaml',
};
const hashComments = new Set(['py', 'sh', 'yaml']);

function pattern(family) {
  const comment = hashComments.has(family) ? '#[^\\n]*' : family === 'sql' ? '--[^\\n]*' : '//[^\\n]*|/\\*[^]*?(?:\\*/|$)';
  const string = `${family === 'py' ? '"""[^]*?(?:"""|$)|\'\'\'[^]*?(?:\'\'\'|$)|' : ''}"(?:\\\\.|[^"\\\\\\n])*"?|'(?:\\\\.|[^'\\\\\\n])*'?|\`(?:\\\\.|[^\`\\\\])*\`?`;
  return new RegExp(`(${comment})|(${string})|\\b(0x[\\da-fA-F]+|\\d[\\d_]*(?:\\.\\d+)?(?:[eE][+-]?\\d+)?)\\b|([A-Za-z_@#$][\\w$]*)(\\s*\\()?`, 'g');
}

export function highlight(code, language) {
  const family = families[(language || '').toLowerCase()];
  if (!family || code.length > 60000) return code;
  const known = keywords[family] || new Set();
  const out = [];
  let end = 0;
  const push = (kind, text) => out.push(kind ? <span class={`hl-${kind}`}>{text}</span> : text);
  for (const match of code.matchAll(pattern(family))) {
    if (match.index > end) push('', code.slice(end, match.index));
    const [all, comment, string, number, word, call] = match;
    if (comment) push('comment', comment);
    else if (string) push('string', string);
    else if (number) push('number', number);
    else {
      const isKeyword = known.has(word) || (family === 'sql' && known.has(word.toUpperCase()));
      push(isKeyword ? 'keyword' : call ? 'call' : /^[A-Z]\w*[a-z]/.test(word) ? 'type' : '', word);
      if (call) push('', call);
    }
    end = match.index + all.length;
  }
  push('', code.slice(end));
  return out;
}
