/// <reference types="svelte" />
/// <reference types="vite/client" />

// The package names a module for browsers that it does not have.
declare module '@xterm/headless/lib-headless/xterm-headless.mjs' {
  export { Terminal } from '@xterm/headless'
}
