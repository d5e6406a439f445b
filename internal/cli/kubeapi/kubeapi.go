// Package kubeapi asks a Kubernetes API server the few questions that tka has
// for people: whether it is there, and what a token may do. It keeps law 8: the
// token goes to the one server whose authority is known, in no URL, no error and
// no log.
package kubeapi

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

	"github.com/tailplane/tailplane/internal/signin"
)

// A Server is one API server, asked with one token.
type Server struct {
	base  string
	token signin.Token
	http  *http.Client
}

// maxAnswer bounds what is read of an answer: a list of all resources of a large
// cluster has a few hundred kilobytes.
const maxAnswer = 8 << 20

// New returns the server at base, an https URL, with the authority ca in PEM.
// The zero token asks as nobody.
func New(base string, ca []byte, token signin.Token) (*Server, error) {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return nil, errors.New("the cluster's certificate authority holds no certificate")
	}
	if !strings.HasPrefix(base, "https://") {
		return nil, fmt.Errorf("%s is not https", base)
	}
	return &Server{base: strings.TrimSuffix(base, "/"), token: token, http: &http.Client{
		Transport: &http.Transport{
			Proxy:                  http.ProxyFromEnvironment,
			TLSClientConfig:        &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
			TLSHandshakeTimeout:    10 * time.Second,
			MaxResponseHeaderBytes: 64 << 10,
			ForceAttemptHTTP2:      true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// A Refusal is an answer that is no success.
type Refusal struct {
	Status  int
	Message string // of the API server
}

func (r *Refusal) Error() string {
	if r.Message == "" {
		return fmt.Sprintf("the API server answered %d %s", r.Status, http.StatusText(r.Status))
	}
	return fmt.Sprintf("the API server answered %d: %s", r.Status, r.Message)
}

// ask sends in, if any, and reads the answer into out.
func (s *Server) ask(ctx context.Context, method, path, accept string, in, out any) error {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(b)
	}
	r, err := http.NewRequestWithContext(ctx, method, s.base+path, body)
	if err != nil {
		return err
	}
	r.Header.Set("Accept", accept)
	if in != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if t := s.token.Reveal(); t != "" {
		r.Header.Set("Authorization", "Bearer "+t)
	}
	res, err := s.http.Do(r)
	if err != nil {
		if ue, ok := errors.AsType[*url.Error](err); ok {
			return ue.Err // the sentence names the server already
		}
		return err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	switch {
	case err != nil:
		return fmt.Errorf("the answer broke off: %w", err)
	case len(text) > maxAnswer:
		return fmt.Errorf("the answer is larger than %d bytes", maxAnswer)
	case res.StatusCode/100 != 2:
		var status struct{ Message string }
		_ = json.Unmarshal(text, &status) // whatever it is, the code says enough
		return &Refusal{res.StatusCode, status.Message}
	}
	if err := json.Unmarshal(text, out); err != nil {
		return fmt.Errorf("the answer is not what was asked for: %w", err)
	}
	return nil
}

const plainJSON = "application/json"

// Version is the version of the API server, such as "v1.37.0". An answer that
// refuses is an answer: the server is there.
func (s *Server) Version(ctx context.Context) (string, error) {
	var v struct {
		GitVersion string `json:"gitVersion"`
	}
	err := s.ask(ctx, http.MethodGet, "/version", plainJSON, nil, &v)
	return v.GitVersion, err
}

// A Question is whether something may be done.
type Question struct {
	Verb        string
	Group       string // of the resource's API; "" is the core one
	Resource    string // plural; or a path that begins with "/"
	Subresource string
	Name        string
	Namespace   string // "" asks for all, or for what is in none
}

// String is how people write it: "get deployments.apps/web in shop".
func (q Question) String() string {
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

// An Answer is what the API server's authorizers say.
type Answer struct {
	Allowed bool   `json:"allowed"`
	Denied  bool   `json:"denied"` // by an authorizer that has the last word
	Reason  string `json:"reason"`
	Trouble string `json:"evaluationError"` // some rules could not be looked at
}

// May asks whether the token may do q.
func (s *Server) May(ctx context.Context, q Question) (Answer, error) {
	spec := map[string]any{}
	if path, ok := strings.CutPrefix(q.Resource, "/"); ok {
		spec["nonResourceAttributes"] = map[string]string{"verb": q.Verb, "path": "/" + path}
	} else {
		spec["resourceAttributes"] = map[string]string{"verb": q.Verb, "group": q.Group, "resource": q.Resource,
			"subresource": q.Subresource, "name": q.Name, "namespace": q.Namespace}
	}
	var review struct{ Status Answer }
	err := s.ask(ctx, http.MethodPost, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", plainJSON,
		map[string]any{"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": spec}, &review)
	return review.Status, err
}

// Rules is how many rules give the token rights in a namespace, beyond those that
// everybody has who is authenticated.
func (s *Server) Rules(ctx context.Context, namespace string) (n int, err error) {
	var review struct {
		Status struct {
			ResourceRules []struct {
				APIGroups []string `json:"apiGroups"`
			} `json:"resourceRules"`
		}
	}
	err = s.ask(ctx, http.MethodPost, "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", plainJSON, map[string]any{
		"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": map[string]string{"namespace": namespace}}, &review)
	for _, r := range review.Status.ResourceRules {
		if !slices.ContainsFunc(r.APIGroups, func(g string) bool { return g == "authorization.k8s.io" || g == "authentication.k8s.io" }) {
			n++
		}
	}
	return n, err
}

// A Resource is one that the cluster has.
type Resource struct {
	Group      string
	Name       string // plural
	Namespaced bool
}

// ErrNoResource is a word that no resource of the cluster goes by.
var ErrNoResource = errors.New("the cluster has no such resource")

const discovery = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

// Find returns the resource that people call by a word: its plural, its singular
// or a short name, with ".group" behind it or not. The core API comes first.
func (s *Server) Find(ctx context.Context, word string) (Resource, error) {
	name, group, grouped := strings.Cut(strings.ToLower(word), ".")
	if name == "" {
		return Resource{}, ErrNoResource
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
		if err := s.ask(ctx, http.MethodGet, path, discovery, nil, &list); err != nil {
			return Resource{}, fmt.Errorf("look for the resource %q: %w", word, err)
		}
		for _, g := range list.Items {
			if grouped && g.Metadata.Name != group {
				continue
			}
			for _, v := range g.Versions {
				for _, r := range v.Resources {
					if r.Resource == name || r.SingularResource == name || slices.Contains(r.ShortNames, name) {
						return Resource{g.Metadata.Name, r.Resource, r.Scope == "Namespaced"}, nil
					}
				}
			}
		}
	}
	return Resource{}, ErrNoResource
}
