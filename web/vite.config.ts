import { svelte } from '@sveltejs/vite-plugin-svelte'
import { defineConfig } from 'vite'

// CI compares the committed bundle byte by byte. So nothing in it may depend on the machine or
// the time: names come from content, and the server compresses the files.
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
