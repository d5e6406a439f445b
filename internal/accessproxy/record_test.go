package accessproxy

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/audit"
)

// Only successful reads may be recorded after their response: a crash must not lose the entry of a change or of a refusal.
func TestRecordLater(t *testing.T) {
	for name, tt := range map[string]struct {
		verb, upgrade string
		refused       *refusal
		later         bool
	}{
		"get":    {verb: "get", later: true},
		"watch":  {verb: "watch", later: true},
		"create": {verb: "create"},
		"delete": {verb: "delete"},
		"exec":   {verb: "get", upgrade: "websocket"},
		"denied": {verb: "get", refused: &refusal{status: http.StatusForbidden}},
	} {
		t.Run(name, func(t *testing.T) {
			now, later := 0, 0
			p := &Proxy{RecordAll: true, Now: time.Now,
				Record:      func(audit.Entry) error { now++; return nil },
				RecordLater: func(audit.Entry) error { later++; return nil }}
			x := newExchange(p, httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/api/v1/secrets", nil))
			x.request, x.upgrade, x.refused, x.status = &apiproxy.Request{Verb: tt.verb, Resource: "secrets"}, tt.upgrade, tt.refused, http.StatusOK
			x.end()
			if got := later == 1; now+later != 1 || got != tt.later {
				t.Errorf("recorded %d times at once and %d times later, want later: %v", now, later, tt.later)
			}
		})
	}
}
