import { svelte } from '@sveltejs/vite-plugin-svelte'
import { defineConfig } from 'vite'

// The bundle is committed and compared byte by byte in CI, so nothing in it may
// depend on the machine or on the time: names come from content, and what is
// served compressed is compressed by the server.
export default defineConfig({
  plugins: [svelte()],
  build: {
    outDir: '../internal/plane/web/dist',
    emptyOutDir: true,
    target: 'es2023',
    cssTarget: 'chrome123',
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    reportCompressedSize: false,
    rollupOptions: {
      output: {
        entryFileNames: 'assets/app-[hash].js',
        chunkFileNames: 'assets/part-[hash].js',
        assetFileNames: 'assets/app-[hash][extname]',
      },
    },
  },
})
