package exchange

import (
	"net/http"
	"net/url"
	"testing"
	"testing/synctest"
	"time"
)

// silence never answers.
type silence struct{}

func (silence) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// FL-04: what is not answered ends, though nobody waits with a deadline of their own.
func TestHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &Host{base: &url.URL{Scheme: "https", Host: "example.com"}, transport: silence{}}
		begun, told := time.Now(), -1
		a, err := h.Ask(t.Context(), Request{Method: http.MethodGet, Path: "/x"}, func(status int, _ http.Header) { told = status })
		if err == nil || a != nil || told != 0 || time.Since(begun) != attemptTime {
			t.Errorf("%+v, %v, told %d, after %v", a, err, told, time.Since(begun))
		}
	})
}
