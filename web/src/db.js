// Conversations in IndexedDB, and news of them between the tabs of one browser.

const channel = 'BroadcastChannel' in window ? new BroadcastChannel('spate') : null;
let opened;

function open() {
  opened ||= new Promise((resolve, reject) => {
    const request = indexedDB.open('spate', 1);
    request.onupgradeneeded = () => request.result.createObjectStore('conversations', { keyPath: 'id' });
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
  return opened;
}

async function run(mode, action) {
  const db = await open();
  return new Promise((resolve, reject) => {
    const transaction = db.transaction('conversations', mode);
    const request = action(transaction.objectStore('conversations'));
    transaction.oncomplete = () => resolve(request.result);
    transaction.onabort = transaction.onerror = () => reject(transaction.error || request.error);
  });
}

export async function loadConversations() {
  const all = await run('readonly', (store) => store.getAll());
  return all.sort((a, b) => b.updated - a.updated);
}

export const loadConversation = (id) => run('readonly', (store) => store.get(id));

export async function saveConversation(conversation) {
  await run('readwrite', (store) => store.put(conversation));
  channel?.postMessage({ saved: conversation.id });
}

export async function deleteConversation(id) {
  await run('readwrite', (store) => store.delete(id));
  channel?.postMessage({ deleted: id });
}

// `listener` hears {saved: id} or {deleted: id} of other tabs.
export function onOtherTab(listener) {
  if (!channel) return () => {};
  const handler = (event) => listener(event.data);
  channel.addEventListener('message', handler);
  return () => channel.removeEventListener('message', handler);
}
