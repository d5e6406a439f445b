// The location. The address contains the whole state of a view: page, tab, filter, sort, and
// the open object. So a link shows the view of its sender.

export const place = $state({ path: location.pathname, query: new URLSearchParams(location.search), moves: 0 })

function read(): void {
  if (place.path !== location.pathname) place.moves++
  place.path = location.pathname
  place.query = new URLSearchParams(location.search)
}

/** Goes to an address of this page. */
export function go(to: string, how: 'push' | 'replace' = 'push', state: unknown = null): void {
  if (to === location.pathname + location.search) return
  history[how === 'push' ? 'pushState' : 'replaceState'](state, '', to)
  read()
  if (how === 'push' && state === null) scrollTo(0, 0)
}

/** Changes parameters of the address; null or "" removes one. */
export function set(changes: Record<string, string | null>): void {
  go(place.path + withQuery(changes), 'replace', history.state)
}

/** Opens the sheet of an object over the shown list. */
export function openSheet(id: string): void {
  go(place.path + withQuery({ open: id }), 'push', 'sheet')
}

/** Closes the sheet. Goes back in the history if it was opened from the list. */
export function closeSheet(): void {
  if (history.state === 'sheet') history.back()
  else set({ open: null })
}

/** The address's query with changes, for links. */
export function withQuery(changes: Record<string, string | null>): string {
  const q = new URLSearchParams(place.query)
  for (const [k, v] of Object.entries(changes)) v ? q.set(k, v) : q.delete(k)
  const s = q.toString()
  return s ? '?' + s : ''
}

/** Handles links within the page, and the browser's back and forward. */
export function listen(): () => void {
  const click = (e: MouseEvent) => {
    const a = (e.target as Element | null)?.closest?.('a')
    if (!a || e.defaultPrevented || e.button !== 0 || e.metaKey || e.ctrlKey || e.shiftKey || e.altKey) return
    if (a.origin !== location.origin || a.target || a.hasAttribute('download') || a.dataset.leave !== undefined) return
    if (a.hash && a.pathname === location.pathname) return
    e.preventDefault()
    go(a.pathname + a.search)
  }
  addEventListener('click', click)
  addEventListener('popstate', read)
  return () => {
    removeEventListener('click', click)
    removeEventListener('popstate', read)
  }
}
