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

// Conversations of a file that a user chose: only what we know, each field of its type.
export function readExport(text) {
  const list = JSON.parse(text).conversations;
  if (!Array.isArray(list)) throw new Error('conversations');
  return list.map((each) => {
    const nodes = {};
    for (const node of Object.values(each.nodes || {})) {
      if (!['user', 'assistant', 'tool'].includes(node.role)) continue;
      nodes[String(node.id)] = {
        id: String(node.id),
        parent: node.parent === null || node.parent === undefined ? null : String(node.parent),
        role: node.role,
        content: String(node.content ?? ''),
        reasoning: String(node.reasoning ?? ''),
        toolCalls: Array.isArray(node.toolCalls) ? node.toolCalls : [],
        stats: node.stats && typeof node.stats === 'object' ? node.stats : null,
      };
    }
    if (hasCycle(nodes)) throw new Error('cycle');
    const leaf = nodes[each.leaf] ? String(each.leaf) : Object.keys(nodes).pop() || null;
    return {
      id: newId(), title: String(each.title ?? ''), system: String(each.system ?? ''), leaf,
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
