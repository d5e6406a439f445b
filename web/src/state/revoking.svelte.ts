import { SvelteSet } from 'svelte/reactivity'

/** The sign-ins whose end was asked for and is not confirmed yet. */
export const revoking = new SvelteSet<string>()
