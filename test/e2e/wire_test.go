package e2e

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/testkit/kubetest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// withHeader adds a header to each request, as an attacker could.
type withHeader struct {
	http.RoundTripper
	name, value string
}

func (h withHeader) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	if h.name == "Host" {
		r.Host = h.value
	} else {
		r.Header.Set(h.name, h.value)
	}
	return h.RoundTripper.RoundTrip(r)
}

// raw sends only the request line, as the oldest clients do.
func raw(t *testing.T, p *testenv.Person, r *testenv.Env, method, path string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, r.Server()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("User-Agent", "")
	res, err := p.HTTP().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, strings.TrimSpace(string(b))
}

func kubectlAdmin(t *testing.T, r *testenv.Env, args ...string) (string, string, int) {
	t.Helper()
	return kubetest.Kubectl(t.Context(), r.Cluster.Kubeconfig, args...)
}

// writes returns a fingerprint of everything that sign-in can write.
func writes(t *testing.T, r *testenv.Env) string {
	t.Helper()
	c, k := clients(t, r)
	var list v1alpha1.TkaSigninList
	if err := c.List(t.Context(), &list, client.InNamespace(testenv.SigninNamespace)); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, s := range list.Items {
		fmt.Fprintf(&b, "%s/%d ", s.Name, s.Generation)
	}
	accounts, err := k.CoreV1().ServiceAccounts(testenv.SigninNamespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range accounts.Items {
		fmt.Fprintf(&b, "%s/%s ", a.Name, a.ResourceVersion)
	}
	return b.String()
}

func tokenClaims(t *testing.T, token string) (c claims) {
	t.Helper()
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		t.Fatal("not a token")
	}
	b, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err == nil {
		err = json.Unmarshal(b, &c)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}
