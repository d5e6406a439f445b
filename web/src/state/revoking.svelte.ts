import { SvelteSet } from 'svelte/reactivity'

/** The sign-ins with a requested end that is not confirmed yet. */
export const revoking = new SvelteSet<string>()
