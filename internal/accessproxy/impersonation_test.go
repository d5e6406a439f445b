package accessproxy_test

import (
	"net/http"
	"testing"

	"github.com/tailplane/tailplane/internal/accessproxy"
	"github.com/tailplane/tailplane/internal/problem"
)

// PX-02, PX-05: impersonation that passes, and that is refused.
func TestCheckImpersonation(t *testing.T) {
	p := &accessproxy.Proxy{Protected: []string{"tailplane-system", "kube-system"}}
	for _, tt := range []struct {
		why  string
		h    http.Header
		code problem.Code // "": it passes
	}{
		{"none", http.Header{"Impersonate": {"x"}, "X-Impersonate-User": {"x"}}, ""},
		{"a user", http.Header{"Impersonate-User": {"jane"}}, ""},
		{"all kinds", http.Header{"Impersonate-User": {"jane"}, "Impersonate-Group": {"a", "b"}, "Impersonate-Uid": {"1"}, "Impersonate-Extra-A.b%2fc": {"x", "y"}}, ""},
		{"a user with a space", http.Header{"Impersonate-User": {"Jane Doe"}}, ""},
		{"an account of another namespace", http.Header{"Impersonate-User": {"system:serviceaccount:kube-system2:x"}}, ""},
		{"an account of a protected namespace", http.Header{"Impersonate-User": {"system:serviceaccount:kube-system:x"}}, problem.Forbidden},
		{"such an account, with a group", http.Header{"Impersonate-User": {"system:serviceaccount:tailplane-system:x"}, "Impersonate-Group": {"a"}}, problem.Forbidden},
		{"two users", http.Header{"Impersonate-User": {"jane", "joe"}}, problem.BadRequest},
		{"no user", http.Header{"Impersonate-Group": {"a"}}, problem.BadRequest},
		{"an empty user", http.Header{"Impersonate-User": {""}}, problem.BadRequest},
		{"an empty group of several", http.Header{"Impersonate-User": {"jane"}, "Impersonate-Group": {"a", ""}}, problem.BadRequest},
		{"an underscore", http.Header{"Impersonate_user": {"jane"}}, problem.BadRequest},
		{"an unknown kind", http.Header{"Impersonate-User": {"jane"}, "Impersonate-Node": {"x"}}, problem.BadRequest},
		{"an extra without a key", http.Header{"Impersonate-User": {"jane"}, "Impersonate-Extra-": {"x"}}, problem.BadRequest},
		{"an extra with a space", http.Header{"Impersonate-User": {"jane"}, "Impersonate-Extra-A%20b": {"x"}}, problem.BadRequest},
		{"a line break", http.Header{"Impersonate-User": {"a\r\nb"}}, problem.BadRequest},
		{"nominated", http.Header{"Impersonate-User": {"jane"}, "Connection": {"close, impersonate-user"}}, problem.BadRequest},
		{"nominated with an underscore", http.Header{"Impersonate-User": {"jane"}, "Connection": {"Impersonate_User"}}, problem.BadRequest},
	} {
		if got := problem.CodeOf(p.CheckImpersonation(tt.h)); got != tt.code {
			t.Errorf("%s: %q, want %q", tt.why, got, tt.code)
		}
	}
}
