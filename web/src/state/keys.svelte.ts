// Keyboard shortcuts. They are off in text fields, and can be disabled.
import { prefs } from './prefs.svelte.ts'
import { go } from './router.svelte.ts'

type Offer = { filter?: () => void; move?: (by: number) => void }

/** The keyboard actions of the current view. */
class Keys {
  #offers: Offer[] = []
  #g = 0

  /** Registers the actions of a view. The returned function removes them. */
  offer(o: Offer): () => void {
    this.#offers.push(o)
    return () => void (this.#offers = this.#offers.filter((x) => x !== o))
  }

  listen(on: { help: () => void; palette: () => void }): () => void {
    const down = (e: KeyboardEvent) => {
      if ((e.ctrlKey || e.metaKey) && !e.altKey && !e.shiftKey && e.key.toLowerCase() === 'k') {
        e.preventDefault()
        on.palette()
        return
      }
      if (!prefs.keys || e.ctrlKey || e.metaKey || e.altKey || e.isComposing || e.defaultPrevented) return
      const t = e.target as HTMLElement | null
      if (t?.closest('input, textarea, select, [contenteditable], dialog')) return
      const top = this.#offers.at(-1)
      if (this.#g && e.timeStamp - this.#g < 1500) {
        this.#g = 0
        const to = pages.find((p) => p.key === e.key)
        if (to) {
          e.preventDefault()
          go(to.path)
        }
        return
      }
      const act: Record<string, (() => void) | undefined> = {
        '?': on.help,
        '/': top?.filter,
        j: () => top?.move?.(1),
        k: () => top?.move?.(-1),
        g: () => (this.#g = e.timeStamp),
      }
      const f = Object.hasOwn(act, e.key) ? act[e.key] : undefined
      if (f) {
        e.preventDefault()
        f()
      }
    }
    addEventListener('keydown', down)
    return () => removeEventListener('keydown', down)
  }
}

export const keys = new Keys()

/** The pages, each with the key after g. */
export const pages = [
  { path: '/', key: 'o', name: 'Overview', icon: 'overview' },
  { path: '/clusters', key: 'c', name: 'Clusters', icon: 'clusters' },
  { path: '/signins', key: 's', name: 'Sign-ins', icon: 'signins' },
  { path: '/connections', key: 't', name: 'Connections', icon: 'link' },
  { path: '/recordings', key: 'r', name: 'Recordings', icon: 'recordings' },
  { path: '/network', key: 'n', name: 'Network', icon: 'network' },
  { path: '/fleet', key: 'f', name: 'Fleet', icon: 'fleet' },
  { path: '/changes', key: 'h', name: 'Changes', icon: 'changes' },
  { path: '/adapters', key: 'a', name: 'Adapters', icon: 'adapters' },
  { path: '/audit', key: 'l', name: 'Audit log', icon: 'audit' },
  { path: '/settings', key: ',', name: 'Settings', icon: 'settings' },
] as const
