// A conversation is a tree of messages. An edit or a new try is a sibling; the path from the root to `leaf` is what is
// shown and sent.
//   {id, title, system, leaf, updated, nodes: {id: {id, parent, role, content, reasoning, toolCalls, stats, error}}}

export const newId = () => Array.from(crypto.getRandomValues(new Uint8Array(9)), (b) => b.toString(36).padStart(2, '0')).join('');

export function newConversation() {
  return { id: newId(), title: '', system: '', leaf: null, updated: Date.now(), nodes: {} };
}

export function pathTo(conversation, id = conversation.leaf) {
  const path = [];
  for (let node = conversation.nodes[id]; node; node = conversation.nodes[node.parent]) path.unshift(node);
  return path;
}

export function siblingsOf(conversation, node) {
  return Object.values(conversation.nodes).filter((other) => other.parent === node.parent && other.role === node.role);
}

// The newest leaf below a node.
export function leafBelow(conversation, id) {
  for (;;) {
    const children = Object.values(conversation.nodes).filter((node) => node.parent === id);
    if (!children.length) return id;
    id = children[children.length - 1].id;
  }
}

export function withNode(conversation, node) {
  return { ...conversation, leaf: node.id, updated: Date.now(), nodes: { ...conversation.nodes, [node.id]: node } };
}

export function withChangedNode(conversation, id, changes) {
  return {
    ...conversation,
    updated: Date.now(),
    nodes: { ...conversation.nodes, [id]: { ...conversation.nodes[id], ...changes } },
  };
}

// What is sent for an answer below `parentId`.
export function messagesFor(conversation, parentId) {
  const messages = conversation.system.trim() ? [{ role: 'system', content: conversation.system }] : [];
  for (const node of pathTo(conversation, parentId)) {
    const message = { role: node.role, content: node.content };
    if (node.toolCalls?.length) message.tool_calls = node.toolCalls;
    if (node.role === 'tool') message.tool_call_id = node.toolCallId;
    messages.push(message);
  }
  return messages;
}

const textOf = (value) => (typeof value === 'string' ? value : '');

function readToolCalls(calls) {
  if (!Array.isArray(calls)) return [];
  return calls.map((call) => ({ id: textOf(call?.id), type: 'function', function: { name: textOf(call?.function?.name), arguments: textOf(call?.function?.arguments) } }));
}

function readStats(stats) {
  if (!stats || typeof stats !== 'object') return null;
  const names = ['firstToken', 'promptTokens', 'completionTokens', 'cachedTokens', 'tokensPerSecond'];
  return Object.fromEntries(names.filter((name) => Number.isFinite(stats[name])).map((name) => [name, stats[name]]));
}

// Conversations of a file that a user chose: only what we know, each field of its type. Nodes get ids of ours: a file's
// own may be names that every object has.
export function readExport(text) {
  const list = JSON.parse(text).conversations;
  if (!Array.isArray(list)) throw new Error('conversations');
  return list.map((each) => {
    const known = Object.values(each.nodes || {}).filter((node) => ['user', 'assistant', 'tool'].includes(node?.role));
    const ids = new Map(known.map((node) => [String(node.id), newId()]));
    const nodes = {};
    for (const node of known) {
      const id = ids.get(String(node.id));
      nodes[id] = {
        id,
        parent: ids.get(String(node.parent)) ?? null,
        role: node.role,
        content: textOf(node.content),
        reasoning: textOf(node.reasoning),
        toolCalls: readToolCalls(node.toolCalls),
        stats: readStats(node.stats),
      };
      if (node.role === 'tool') nodes[id].toolCallId = textOf(node.toolCallId);
    }
    if (hasCycle(nodes)) throw new Error('cycle');
    const leaf = ids.get(String(each.leaf)) ?? Object.keys(nodes).pop() ?? null;
    return {
      id: newId(), title: textOf(each.title), system: textOf(each.system), leaf,
      updated: Number(each.updated) || Date.now(), nodes,
    };
  });
}

function hasCycle(nodes) {
  return Object.values(nodes).some((start) => {
    const seen = new Set();
    for (let node = start; node; node = nodes[node.parent]) {
      if (seen.has(node.id)) return true;
      seen.add(node.id);
    }
    return false;
  });
}
