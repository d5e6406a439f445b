package recording

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// PX-14: a recorder without room refuses a recording before it answers with 200: after that, a short command could run and end before the
// proxy learns that it is not recorded.
func TestFullHandlerRefuses(t *testing.T) {
	path := t.TempDir()
	if err := os.WriteFile(filepath.Join(path, "20261128T100000Z-0123456789abcdef.cast"), []byte("{\"version\":2}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := OpenDir(DirConfig{Path: path, MaxCount: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v2/record", strings.NewReader("{\"version\":2}\n"))
	r.ProtoMajor, r.ProtoMinor = 2, 0
	w := httptest.NewRecorder()
	d.Handler().ServeHTTP(w, r)
	if w.Code != http.StatusInsufficientStorage {
		t.Errorf("a full recorder answers %d %s, want %d", w.Code, w.Body, http.StatusInsufficientStorage)
	}
}
