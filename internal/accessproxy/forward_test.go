package accessproxy

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/iotest"
)

// A response reaches the client byte for byte, whatever the pieces are in which it comes.
func TestRelayBody(t *testing.T) {
	for _, size := range []int{0, 1, smallBuffer - 1, smallBuffer, smallBuffer + 1, largeBuffer - 1, largeBuffer, largeBuffer + 1, 3*largeBuffer + 7} {
		want := bytes.Repeat([]byte("0123456789abcdef!"), size/17+1)[:size]
		for name, body := range map[string]io.Reader{"whole": bytes.NewReader(want), "halves": iotest.HalfReader(bytes.NewReader(want)), "end with data": iotest.DataErrReader(bytes.NewReader(want))} {
			w := httptest.NewRecorder()
			x := &exchange{proxy: newBuffers(), w: w}
			if err := x.relayBody(&http.Response{Body: io.NopCloser(body)}); err != nil {
				t.Errorf("%d bytes, %s: %v", size, name, err)
			}
			if !bytes.Equal(w.Body.Bytes(), want) {
				t.Errorf("%d bytes, %s: the client has %d, or others", size, name, w.Body.Len())
			}
		}
	}
}

// A truncated response never looks complete. What has come is passed on, and then the connection is aborted.
func TestTruncatedResponse(t *testing.T) {
	for _, size := range []int{0, 1, smallBuffer, largeBuffer, largeBuffer + 5} {
		for _, failure := range []error{io.ErrUnexpectedEOF, errors.New("reset")} {
			w := httptest.NewRecorder()
			x := &exchange{proxy: newBuffers(), w: w, r: httptest.NewRequest("GET", "/", nil)}
			x.proxy.Log = slog.New(slog.DiscardHandler)
			func() {
				defer func() {
					if got := recover(); got != http.ErrAbortHandler {
						t.Errorf("%d bytes, then %v: panic %v, want ErrAbortHandler", size, failure, got)
					}
				}()
				err := x.relayBody(&http.Response{Body: io.NopCloser(io.MultiReader(bytes.NewReader(make([]byte, size)), iotest.ErrReader(failure)))})
				t.Errorf("%d bytes, then %v: returned %v", size, failure, err)
			}()
			if w.Body.Len() != size {
				t.Errorf("%d bytes, then %v: the client has %d", size, failure, w.Body.Len())
			}
		}
	}
}

func newBuffers() *Proxy {
	p := &Proxy{}
	p.buffers.init()
	return p
}
