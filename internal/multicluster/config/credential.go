package config

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/tailplane/tailplane/internal/util/secret"
)

// Credential is the content of one Secret: the addresses of a cluster, its CA and its credential. Either
// Token or Certificate is set.
type Credential struct {
	Servers       []*url.URL // of one cluster
	CA            []byte     // PEM
	TLSServerName string     // "": the host of the server
	Token         secret.Text
	Certificate   []byte      // PEM, with Key
	Key           secret.Text // PEM
}

// The files of a cluster's Secret. A kubeconfig must be the only file. namespace and ca.crt also occur in a
// Secret that Kubernetes creates for a ServiceAccount.
const (
	FileServer     = "server"
	FileCA         = "ca.crt"
	FileToken      = "token"
	FileCert       = "tls.crt"
	FileKey        = "tls.key"
	FileServerName = "tls-server-name"
	FileKubeconfig = "kubeconfig"
	fileNamespace  = "namespace"
)

// ReadCredential reads the files of a mounted Secret, given by name. It refuses every setting that would send
// the credential elsewhere, run a program or skip certificate verification. The error names the setting
// (AD-08). No error contains the content of a file.
func ReadCredential(files map[string][]byte, allowLoopback bool) (*Credential, error) {
	for _, name := range slices.Sorted(maps.Keys(files)) {
		switch name {
		case FileServer, FileCA, FileToken, FileCert, FileKey, FileServerName, FileKubeconfig, fileNamespace:
		default:
			return nil, fmt.Errorf(
				"the Secret has the key %.60q, which is unknown; it can have server, ca.crt, token, tls.crt, tls.key, tls-server-name and kubeconfig%s",
				name,
				forbiddenFieldReason(name),
			)
		}
	}
	var c *Credential
	var servers []string
	if k, ok := files[FileKubeconfig]; ok {
		if len(files) > 1 {
			return nil, errors.New("the Secret has a kubeconfig and other keys, which is ambiguous")
		}
		var server string
		var err error
		if c, server, err = readKubeconfig(k); err != nil {
			return nil, err
		}
		servers = []string{server}
	} else {
		c = &Credential{CA: files[FileCA], Certificate: files[FileCert], Key: secret.New(string(files[FileKey])),
			TLSServerName: strings.TrimSpace(string(files[FileServerName])), Token: secret.New(strings.TrimSpace(string(files[FileToken])))}
		servers = strings.Fields(string(files[FileServer]))
	}
	if len(servers) == 0 {
		return nil, errors.New("the Secret has no server")
	}
	for _, s := range servers {
		u, err := CheckServer(s, allowLoopback)
		if err != nil {
			return nil, fmt.Errorf("the server in the Secret is refused: %w", err)
		}
		c.Servers = append(c.Servers, u)
	}
	return c, c.check()
}

var tokenForm = regexp.MustCompile(`^[\x21-\x7e]+$`)

func (c *Credential) check() error {
	if !x509.NewCertPool().AppendCertsFromPEM(c.CA) {
		return errors.New("ca.crt contains no certificate to verify the cluster")
	}
	if c.TLSServerName != "" && (len(c.TLSServerName) > 253 || !dnsName.MatchString(c.TLSServerName)) {
		return errors.New("tls-server-name is not a DNS name")
	}
	certificate := len(c.Certificate) > 0 || !c.Key.IsZero()
	switch {
	case !c.Token.IsZero() && certificate:
		return errors.New("there are a token and a client certificate, which is ambiguous")
	case c.Token.IsZero() && !certificate:
		return errors.New("there is neither a token nor a client certificate")
	case certificate:
		if _, err := tls.X509KeyPair(c.Certificate, []byte(c.Key.Reveal())); err != nil {
			return errors.New("tls.crt and tls.key are not a certificate with its key")
		}
	case !tokenForm.MatchString(c.Token.Reveal()):
		return errors.New("the token has a space or a character that is not valid in a token")
	}
	return nil
}

// kubeconfigReader reads a kubeconfig.
type kubeconfigReader struct {
	yamlReader
	contexts map[string]kubeconfigContext
	clusters map[string]kubeconfigCluster
	users    map[string]*Credential
}

type (
	kubeconfigContext struct{ cluster, user string }
	kubeconfigCluster struct {
		server, serverName string
		ca                 []byte
	}
)

// readKubeconfig reads the current context of a kubeconfig. It refuses a forbidden field in any entry.
func readKubeconfig(b []byte) (*Credential, string, error) {
	r := &kubeconfigReader{
		yamlReader{secret: true},
		map[string]kubeconfigContext{},
		map[string]kubeconfigCluster{},
		map[string]*Credential{},
	}
	root := r.root(b)
	if root == nil {
		return nil, "", fmt.Errorf("the kubeconfig cannot be read: %w", hideContents(r.diagnostics))
	}
	var apiVersion, kind, current string
	r.mapping(root, "the kubeconfig", map[string]fieldFunc{
		"apiVersion": r.text("apiVersion", &apiVersion), "kind": r.text("kind", &kind),
		"preferences": ignoreField, "extensions": ignoreField, "current-context": r.text("current-context", &current),
		"clusters": r.entries("cluster", r.cluster), "contexts": r.entries("context", r.context), "users": r.entries("user", r.user),
	})
	if len(r.diagnostics) > 0 {
		return nil, "", fmt.Errorf("the kubeconfig is refused: %w", r.result())
	}
	at, ok := r.contexts[current]
	cl, hasCluster := r.clusters[at.cluster]
	user, hasUser := r.users[at.user]
	switch {
	case apiVersion != "v1" || kind != "Config":
		return nil, "", errors.New("the kubeconfig does not have apiVersion v1 and kind Config")
	case current == "" || !ok:
		return nil, "", errors.New("the kubeconfig's current-context is not one of its contexts")
	case !hasCluster || !hasUser:
		return nil, "", errors.New("the kubeconfig's current context has a cluster or user that does not exist in it")
	}
	user.CA, user.TLSServerName = cl.ca, cl.serverName
	return user, cl.server, nil
}

func ignoreField(*yaml.Node) {}

func (r *kubeconfigReader) refused(what string) fieldFunc {
	return func(n *yaml.Node) { r.fail(n, "%s is refused%s", what, forbiddenFieldReason(what)) }
}

// data returns a reader of base64.
func (r *kubeconfigReader) data(what string, to *[]byte) fieldFunc {
	return func(n *yaml.Node) {
		var s string
		r.text(what, &s)(n)
		out, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(s), ""))
		if err != nil {
			r.fail(n, "%s is not base64", what)
		}
		*to = out
	}
}

// entries returns a reader of a list of entries, each with a name and a value of that kind.
func (r *kubeconfigReader) entries(kind string, value func(name string, n *yaml.Node)) fieldFunc {
	return func(n *yaml.Node) {
		if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
			return
		}
		if n.Kind != yaml.SequenceNode {
			r.fail(n, "%ss is not a list", kind)
			return
		}
		seen := map[string]bool{}
		for _, item := range n.Content {
			var name string
			var inner *yaml.Node
			r.mapping(
				item,
				"the "+kind,
				map[string]fieldFunc{"name": r.text("the name of the "+kind, &name), kind: func(n *yaml.Node) { inner = n }},
			)
			if seen[name] {
				r.fail(item, "two %ss have the same name", kind)
			}
			if seen[name] = true; inner != nil {
				value(name, inner)
			}
		}
	}
}

func (r *kubeconfigReader) cluster(name string, n *yaml.Node) {
	var c kubeconfigCluster
	r.mapping(n, "the cluster", map[string]fieldFunc{
		"server": r.text("server", &c.server), "tls-server-name": r.text("tls-server-name", &c.serverName),
		"certificate-authority-data": r.data(
			"certificate-authority-data",
			&c.ca,
		), "disable-compression": ignoreField, "extensions": ignoreField,
		"insecure-skip-tls-verify": func(n *yaml.Node) {
			if n.Value != "false" {
				r.refused("insecure-skip-tls-verify")(n)
			}
		},
		"certificate-authority": r.refused("certificate-authority"), "proxy-url": r.refused("proxy-url"),
	})
	r.clusters[name] = c
}

func (r *kubeconfigReader) context(name string, n *yaml.Node) {
	var c kubeconfigContext
	r.mapping(n, "the context", map[string]fieldFunc{
		"cluster": r.text("cluster", &c.cluster), "user": r.text("user", &c.user), "namespace": ignoreField, "extensions": ignoreField,
	})
	r.contexts[name] = c
}

func (r *kubeconfigReader) user(name string, n *yaml.Node) {
	var c Credential
	var token string
	var key []byte
	fields := map[string]fieldFunc{
		"token": r.text("token", &token), "client-certificate-data": r.data("client-certificate-data", &c.Certificate),
		"client-key-data": r.data("client-key-data", &key), "extensions": ignoreField,
	}
	for _, f := range []string{"exec", "auth-provider", "tokenFile", "client-certificate", "client-key", "username", "password",
		"as", "as-uid", "as-groups", "as-user-extra", "act-as"} {
		fields[f] = r.refused(f)
	}
	r.mapping(n, "the user", fields)
	c.Token, c.Key = secret.New(strings.TrimSpace(token)), secret.New(string(key))
	r.users[name] = &c
}

// hideContents removes the parser's text from syntax errors and keeps their lines, because the text may
// contain a token.
func hideContents(findings []Diagnostic) error {
	out := &InvalidError{}
	for _, f := range findings {
		if strings.HasPrefix(f.Message, "not YAML") {
			f.Message = "this is not YAML"
		}
		out.Diagnostics = append(out.Diagnostics, f)
	}
	return out
}

// CheckAudience returns an error if token has an audience of the home token. Such a token would give its
// recipient access to the home cluster. Both must be ServiceAccount tokens.
func CheckAudience(token, home secret.Text) error {
	clusterAudiences, err := tokenAudiences(token)
	if err != nil {
		return fmt.Errorf("the audience token: %w", err)
	}
	homeAudiences, err := tokenAudiences(home)
	if err != nil {
		return fmt.Errorf("the home token: %w", err)
	}
	for _, a := range clusterAudiences {
		if slices.Contains(homeAudiences, a) {
			return fmt.Errorf("the token is for the audience %.100q, which is also an audience of the home token", a)
		}
	}
	return nil
}

// tokenAudiences returns the aud claim of a JWT. It does not verify the token, which is the pod's own.
func tokenAudiences(token secret.Text) ([]string, error) {
	payload, err := secret.JWTPayload(token.Reveal())
	var claims struct {
		Aud json.RawMessage `json:"aud"`
	}
	if err != nil || json.Unmarshal(payload, &claims) != nil {
		return nil, errors.New("it is not a JWT, so its audience is unknown")
	}
	var many []string
	var one string
	switch {
	case json.Unmarshal(claims.Aud, &many) == nil && len(many) > 0:
		return many, nil
	case json.Unmarshal(claims.Aud, &one) == nil && one != "":
		return []string{one}, nil
	}
	return nil, errors.New("it has no audience")
}
