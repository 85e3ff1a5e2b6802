// localStorage and sessionStorage. A browser that blocks a page's data throws at their mere mention: then values live as
// long as the page.

class Memory {
  #values = new Map();
  getItem(name) { return this.#values.get(name) ?? null; }
  setItem(name, value) { this.#values.set(name, value); }
  removeItem(name) { this.#values.delete(name); }
}

function storageOf(kind) {
  try {
    window[kind].getItem('spate.theme');
    return window[kind];
  } catch {
    return new Memory();
  }
}

export const local = storageOf('localStorage');
export const session = storageOf('sessionStorage');
