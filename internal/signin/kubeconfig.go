package signin

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/util/accept"
	"github.com/tailplane/tailplane/internal/util/secret"
	"github.com/tailplane/tailplane/internal/util/strictjson"
)

// ExpiresHeader carries the expiry of the kubeconfig's token in RFC 3339.
const ExpiresHeader = "Tailplane-Expires-At"

// A Kubeconfig gives one user access to one cluster.
type Kubeconfig struct {
	Cluster               string
	Server                string
	CA                    []byte // PEM
	InsecureSkipTLSVerify bool
	Prefix                string // prefix of the context and user names, such as "tka-"
	Session               Session
	Namespace             string // "" keeps the default of kubectl
	Token                 secret.Text
	ExpiresAt             time.Time
	Signin                string // name of the sign-in, for the audit log

	Subject *TokenIdentity // of the OIDC token, for the audit log; nil: none
}

// AuditDetails returns the OIDC token of the sign-in for the audit log.
func (k Kubeconfig) AuditDetails() map[string]string { return k.Subject.auditDetails() }

// Context returns the name of the context and of the user.
func (k Kubeconfig) Context() string { return ContextName(k.Prefix, k.Cluster, k.Session) }

// ContextName returns the name of the context and of the user of a session: PREFIX CLUSTER for the
// default session, and PREFIX CLUSTER-SESSION for any other.
func ContextName(prefix, cluster string, session Session) string {
	if session != "" {
		cluster += "-" + string(session)
	}
	return prefix + cluster
}

// AuditObject returns the name of the sign-in for the audit log.
func (k Kubeconfig) AuditObject() string { return k.Signin }

// maxTokenID limits the ID of a token in an audit entry. Kubernetes uses UUIDs.
const maxTokenID = 128

// AuditCredentialID returns the ID of the token for the audit log, as Kubernetes writes it into its own audit log, or "" for a token
// without an ID. The API server gave the token to this process, so the signature is not verified. No other claim is read.
func (k Kubeconfig) AuditCredentialID() string {
	payload, err := secret.JWTPayload(k.Token.Reveal())
	if err != nil {
		return ""
	}
	var claims struct {
		ID string `json:"jti"`
	}
	if err := json.Unmarshal(payload, &claims); err != nil || claims.ID == "" || len(claims.ID) > maxTokenID {
		return ""
	}
	return "JTI=" + claims.ID
}

// The parts that the list form and the map form share.
type (
	clusterPart struct {
		Server                string `json:"server"`
		CA                    []byte `json:"certificate-authority-data,omitempty"`
		InsecureSkipTLSVerify bool   `json:"insecure-skip-tls-verify,omitempty"`
	}
	userPart struct {
		Token string `json:"token"`
	}
	contextPart struct {
		Cluster   string `json:"cluster"`
		User      string `json:"user"`
		Namespace string `json:"namespace,omitempty"`
	}
	mapForm struct {
		Kind           string                 `json:"kind"`
		APIVersion     string                 `json:"apiVersion"`
		Clusters       map[string]clusterPart `json:"clusters"`
		Users          map[string]userPart    `json:"users"`
		Contexts       map[string]contextPart `json:"contexts"`
		CurrentContext string                 `json:"current-context"`
	}
	listForm struct {
		Kind           string         `json:"kind"`
		APIVersion     string         `json:"apiVersion"`
		Clusters       []namedCluster `json:"clusters"`
		Users          []namedUser    `json:"users"`
		Contexts       []namedContext `json:"contexts"`
		CurrentContext string         `json:"current-context"`
	}
	namedCluster struct {
		Name    string      `json:"name"`
		Cluster clusterPart `json:"cluster"`
	}
	namedUser struct {
		Name string   `json:"name"`
		User userPart `json:"user"`
	}
	namedContext struct {
		Name    string      `json:"name"`
		Context contextPart `json:"context"`
	}
)

func (k Kubeconfig) parts() (clusterPart, userPart, contextPart) {
	return clusterPart{k.Server, k.CA, k.InsecureSkipTLSVerify}, userPart{k.Token.Reveal()}, contextPart{k.Cluster, k.Context(), k.Namespace}
}

// YAML returns a standard kubeconfig file that kubectl can read. It contains the token.
func (k Kubeconfig) YAML() ([]byte, error) {
	c, u, x := k.parts()
	return yaml.Marshal(listForm{
		Kind: "Config", APIVersion: "v1", CurrentContext: k.Context(),
		Clusters: []namedCluster{{k.Cluster, c}}, Users: []namedUser{{k.Context(), u}}, Contexts: []namedContext{{k.Context(), x}},
	})
}

// Forms returns the forms of a kubeconfig by media type, for the API reference.
func (Kubeconfig) Forms() map[string]any {
	return map[string]any{"application/json": mapForm{}, "application/yaml": listForm{}}
}

// MarshalJSON returns the map form, which existing clients read. It contains the token.
func (k Kubeconfig) MarshalJSON() ([]byte, error) {
	c, u, x := k.parts()
	return json.Marshal(mapForm{
		Kind: "Config", APIVersion: "v1", CurrentContext: k.Context(),
		Clusters: map[string]clusterPart{k.Cluster: c}, Users: map[string]userPart{k.Context(): u}, Contexts: map[string]contextPart{k.Context(): x},
	})
}

// UnmarshalJSON decodes the map form strictly. It accepts exactly one cluster, one user and one
// context, and no field that makes kubectl run or read something.
func (k *Kubeconfig) UnmarshalJSON(b []byte) error {
	var m mapForm
	if err := strictjson.UnmarshalKnown(b, &m); err != nil {
		return fmt.Errorf("the server's kubeconfig: %w", err)
	}
	if m.Kind != "Config" || m.APIVersion != "v1" || len(m.Clusters) != 1 || len(m.Users) != 1 || len(m.Contexts) != 1 {
		return fmt.Errorf("the server's kubeconfig does not have exactly one cluster, one user and one context")
	}
	x, ok := m.Contexts[m.CurrentContext]
	c, ok2 := m.Clusters[x.Cluster]
	u, ok3 := m.Users[x.User]
	prefix, ok4 := strings.CutSuffix(m.CurrentContext, x.Cluster)
	var session Session
	if !ok4 {
		var name string
		if prefix, name, ok4 = strings.Cut(m.CurrentContext, x.Cluster+"-"); ok4 {
			ok4 = session.UnmarshalText([]byte(name)) == nil
		}
	}
	if !ok || !ok2 || !ok3 || !ok4 || x.User != m.CurrentContext {
		return fmt.Errorf("the names in the server's kubeconfig do not match")
	}
	*k = Kubeconfig{Cluster: x.Cluster, Server: c.Server, CA: c.CA, InsecureSkipTLSVerify: c.InsecureSkipTLSVerify,
		Prefix: prefix, Session: session, Namespace: x.Namespace, Token: secret.New(u.Token)}
	return nil
}

// EncodeResponse selects the form by the Accept header. It returns YAML if the client accepts it and does
// not prefer JSON. Otherwise it returns the map form.
func (k Kubeconfig) EncodeResponse(accept string) (httpapi.Response, error) {
	h := http.Header{ExpiresHeader: {k.ExpiresAt.UTC().Format(time.RFC3339)}}
	if !prefersYAML(accept) {
		return httpapi.Response{Status: http.StatusOK, Header: h, Body: k}, nil
	}
	body, err := k.YAML()
	return httpapi.Response{Status: http.StatusOK, Header: h, ContentType: "application/yaml", Body: body}, err
}

func prefersYAML(header string) bool {
	var asYAML, asJSON float64
	for r := range accept.Ranges(header) {
		q, ok := r.Quality()
		if !ok {
			continue
		}
		switch r.Media {
		case "application/yaml", "text/yaml", "application/x-yaml":
			asYAML = max(asYAML, q)
		case "application/json":
			asJSON = max(asJSON, q)
		}
	}
	return asYAML > 0 && asYAML >= asJSON
}
