package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/cli/dialpolicy"
	"github.com/tailplane/tailplane/internal/cli/tailscaled"
	"github.com/tailplane/tailplane/internal/util/secret"
)

// A KubeAPI is a client for one API server with one token.
type KubeAPI struct {
	base  string
	token secret.Text
	http  *http.Client
}

// maxKubeResponse bounds the size of a response. A list of all resources of a large cluster has a few hundred kilobytes.
const maxKubeResponse = 8 << 20

// maxPlainMessage bounds the message of an error in plain text.
const maxPlainMessage = 1000

// NewKubeAPI returns a client for the server at base, an https URL, with the certificate authority ca in PEM. If ca is nil, the certificate
// must be public. The zero token makes anonymous requests.
func NewKubeAPI(base string, ca []byte, token secret.Text, local *tailscaled.Client) (*KubeAPI, error) {
	var roots *x509.CertPool // nil: those of the system
	if len(ca) > 0 {
		if roots = x509.NewCertPool(); !roots.AppendCertsFromPEM(ca) {
			return nil, errors.New("the cluster's certificate authority has no certificate")
		}
	}
	if !strings.HasPrefix(base, "https://") {
		return nil, fmt.Errorf("%s is not https", base)
	}
	return &KubeAPI{base: strings.TrimSuffix(base, "/"), token: token, http: &http.Client{
		Transport: &http.Transport{
			Proxy:                  dialpolicy.Proxy(local),
			TLSClientConfig:        &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
			TLSHandshakeTimeout:    10 * time.Second,
			MaxResponseHeaderBytes: 64 << 10,
			ForceAttemptHTTP2:      true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// A KubeAPIError is a response with an error status.
type KubeAPIError struct {
	Status  int
	Message string // from the API server
}

func (r *KubeAPIError) Error() string {
	if r.Message == "" {
		return fmt.Sprintf("the API server answered %d %s", r.Status, http.StatusText(r.Status))
	}
	return fmt.Sprintf("the API server answered %d: %s", r.Status, r.Message)
}

// do sends in as JSON, unless it is nil, and decodes the response into out.
func (k *KubeAPI) do(ctx context.Context, method, path, accept string, in, out any) error {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(b)
	}
	r, err := http.NewRequestWithContext(ctx, method, k.base+path, body)
	if err != nil {
		return err
	}
	r.Header.Set("Accept", accept)
	if in != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if t := k.token.Reveal(); t != "" {
		r.Header.Set("Authorization", "Bearer "+t)
	}
	res, err := k.http.Do(r)
	if err != nil {
		if ue, ok := errors.AsType[*url.Error](err); ok {
			return ue.Err // the caller's sentence already names the server
		}
		return err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxKubeResponse+1))
	switch {
	case err != nil:
		return fmt.Errorf("read the answer: %w", err)
	case len(text) > maxKubeResponse:
		return fmt.Errorf("the answer is larger than %d bytes", maxKubeResponse)
	case res.StatusCode/100 != 2:
		var status struct{ Message string }
		if err := json.Unmarshal(text, &status); err != nil && strings.HasPrefix(res.Header.Get("Content-Type"), "text/plain") {
			status.Message, _, _ = strings.Cut(string(text[:min(len(text), maxPlainMessage)]), "\n") // the access proxy refuses discovery like this
		}
		return &KubeAPIError{res.StatusCode, status.Message}
	}
	if err := json.Unmarshal(text, out); err != nil {
		return fmt.Errorf("decode the answer: %w", err)
	}
	return nil
}

// Version returns the version of the API server, such as "v1.37.0". A *KubeAPIError shows that the server responds.
func (k *KubeAPI) Version(ctx context.Context) (string, error) {
	var v struct {
		GitVersion string `json:"gitVersion"`
	}
	err := k.do(ctx, http.MethodGet, "/version", plainJSON, nil, &v)
	return v.GitVersion, err
}

// An AccessQuestion is an action whose permission is to be checked.
type AccessQuestion struct {
	Verb        string
	Group       string // API group of the resource; "" is the core group
	Resource    string // plural; or a path that begins with "/"
	Subresource string
	Name        string
	Namespace   string // "": all namespaces, or a cluster-scoped resource
}

// String returns the form for people: "get deployments.apps/web in shop".
func (q AccessQuestion) String() string {
	s := q.Verb + " " + q.Resource
	if q.Group != "" {
		s += "." + q.Group
	}
	for _, part := range []string{q.Subresource, q.Name} {
		if part != "" {
			s += "/" + part
		}
	}
	switch {
	case strings.HasPrefix(q.Resource, "/"):
	case q.Namespace != "":
		s += " in " + q.Namespace
	default:
		s += " in the whole cluster"
	}
	return s
}

// An AccessAnswer is the decision of the API server's authorizers.
type AccessAnswer struct {
	Allowed         bool   `json:"allowed"`
	Denied          bool   `json:"denied"` // by an authorizer whose denial is final
	Reason          string `json:"reason"`
	EvaluationError string `json:"evaluationError"` // some rules could not be evaluated
}

// CheckAccess checks whether the token may do q.
func (k *KubeAPI) CheckAccess(ctx context.Context, q AccessQuestion) (AccessAnswer, error) {
	spec := map[string]any{}
	if path, ok := strings.CutPrefix(q.Resource, "/"); ok {
		spec["nonResourceAttributes"] = map[string]string{"verb": q.Verb, "path": "/" + path}
	} else {
		spec["resourceAttributes"] = map[string]string{"verb": q.Verb, "group": q.Group, "resource": q.Resource,
			"subresource": q.Subresource, "name": q.Name, "namespace": q.Namespace}
	}
	var review struct{ Status AccessAnswer }
	err := k.review(ctx, "SelfSubjectAccessReview", spec, &review)
	return review.Status, err
}

// review creates a review of a kind, and decodes the API server's answer into out.
func (k *KubeAPI) review(ctx context.Context, kind string, spec, out any) error {
	path := "/apis/authorization.k8s.io/v1/" + strings.ToLower(kind) + "s"
	review := map[string]any{"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}
	return k.do(ctx, http.MethodPost, path, plainJSON, review, out)
}

// CountRules returns how many rules grant the token rights in a namespace, beyond those of every authenticated user.
func (k *KubeAPI) CountRules(ctx context.Context, namespace string) (n int, err error) {
	var review struct {
		Status struct {
			ResourceRules []struct {
				APIGroups []string `json:"apiGroups"`
			} `json:"resourceRules"`
		}
	}
	err = k.review(ctx, "SelfSubjectRulesReview", map[string]string{"namespace": namespace}, &review)
	for _, r := range review.Status.ResourceRules {
		if !slices.ContainsFunc(r.APIGroups, func(g string) bool { return g == "authorization.k8s.io" || g == "authentication.k8s.io" }) {
			n++
		}
	}
	return n, err
}

// A KubeResource is a resource type of the cluster.
type KubeResource struct {
	Group      string
	Name       string // plural
	Namespaced bool
}

// ErrNoResource reports a word that matches no resource of the cluster.
var ErrNoResource = errors.New("the cluster has no such resource")

// The media types of responses.
const (
	plainJSON     = "application/json"
	discoveryJSON = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
)

// FindResource returns the resource with a plural, singular or short name, optionally followed by ".group". The core API takes precedence.
func (k *KubeAPI) FindResource(ctx context.Context, word string) (KubeResource, error) {
	name, group, grouped := strings.Cut(strings.ToLower(word), ".")
	if name == "" {
		return KubeResource{}, ErrNoResource
	}
	for _, path := range []string{"/api", "/apis"} {
		var list struct {
			Items []struct {
				Metadata struct{ Name string }
				Versions []struct {
					Resources []struct {
						Resource         string
						SingularResource string
						ShortNames       []string
						Scope            string
					}
				}
			}
		}
		if err := k.do(ctx, http.MethodGet, path, discoveryJSON, nil, &list); err != nil {
			return KubeResource{}, fmt.Errorf("discover the resource %q: %w", word, err)
		}
		for _, g := range list.Items {
			if grouped && g.Metadata.Name != group {
				continue
			}
			for _, v := range g.Versions {
				for _, r := range v.Resources {
					if r.Resource == name || r.SingularResource == name || slices.Contains(r.ShortNames, name) {
						return KubeResource{g.Metadata.Name, r.Resource, r.Scope == "Namespaced"}, nil
					}
				}
			}
		}
	}
	return KubeResource{}, ErrNoResource
}
