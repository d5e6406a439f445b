package signin

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
)

// A WhoamiRequest names a session.
type WhoamiRequest struct {
	RequestToken
	Session Session `json:"-" query:"session" doc:"whose sign-in to show; without it, the default session"`
}

// Whoami shows how the server sees a caller and how it decides. It contains only the caller's data.
type Whoami struct {
	Caller   CallerIdentity `json:"caller"`
	Rules    []Rule         `json:"rules" null:"never" doc:"the matching rules of the tailnet policy, in its order"`
	Decision Decision       `json:"decision" doc:"the result of a login without parameters"`
	Signin   *Status        `json:"signin" doc:"the sign-in of the session; null: there is none"`
	AuditID  string         `json:"auditId"`

	Token *TokenIdentity `json:"oidc,omitempty" doc:"the OIDC token of the request; absent: it has none"`
}

// CallerIdentity is the caller's identity as the tailnet reports it.
type CallerIdentity struct {
	Login   string     `json:"login" doc:"the full login; empty for a tagged node"`
	Node    string     `json:"node"`
	NodeID  string     `json:"nodeId" doc:"does not change when the device is renamed"`
	Tags    []string   `json:"tags" null:"never"`
	Tailnet string     `json:"tailnet"`
	Via     access.Via `json:"via" enum:"tailnet"`
}

// A Rule is one matching rule, as far as it could be parsed.
type Rule struct {
	Name       string           `json:"name,omitempty" doc:"the rule's name; a login can request it instead of a role"`
	Role       string           `json:"role" doc:"several roles are separated by commas"`
	Period     httpapi.Duration `json:"period,omitzero"`
	Priority   int              `json:"priority"`
	Namespaces []string         `json:"namespaces" null:"never" doc:"where the rule applies; none: the whole cluster, or as in bind"`
	Bind       []Role           `json:"bind,omitempty" doc:"each role and where it applies; absent: role and namespaces say it"`
	Reason     string           `json:"reason,omitempty" enum:"required" doc:"a login must give a reason"`
	OnUse      bool             `json:"onUse,omitempty" doc:"a request through the access proxy begins the sign-in"`
	Idle       httpapi.Duration `json:"idle,omitzero" doc:"how long a sign-in that began on first use lasts without use"`
	OIDC       *RuleToken       `json:"oidc,omitempty" doc:"the OIDC token that a login must bring; absent: none"`
	Chosen     bool             `json:"chosen" doc:"a login without parameters uses this rule"`
	Problem    string           `json:"problem" doc:"why the rule cannot be used; empty if it can"`
}

// A RuleToken is the OIDC token that a rule requires.
type RuleToken struct {
	Issuer   string            `json:"issuer"`
	Audience string            `json:"audience,omitempty" doc:"absent: the audience in the oidc of cluster-info"`
	Claims   map[string]string `json:"claims" null:"never"`
}

// A Decision is the result of a login without parameters.
type Decision struct {
	Allowed bool             `json:"allowed"`
	Code    problem.Code     `json:"code" doc:"code of the refusal; empty if allowed"`
	Message string           `json:"message"`
	Advice  []string         `json:"advice" null:"never"`
	Choices []problem.Choice `json:"choices,omitempty" doc:"if several rules match and the server cannot choose one"`
}

// AuditObject returns the name of the sign-in for the audit log.
func (w Whoami) AuditObject() string {
	if w.Signin == nil {
		return ""
	}
	return w.Signin.Name
}

// WithAuditID returns w with the audit ID of the request.
func (w Whoami) WithAuditID(id string) any {
	w.AuditID = id
	return w
}

func (d *Service) whoami(ctx context.Context, p access.Permit, req WhoamiRequest) (Whoami, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := p.Require(access.Whoami, d.Now()); err != nil {
		return Whoami{}, err
	}
	p, err := d.withToken(ctx, p, req.Token)
	if err != nil {
		return Whoami{}, err
	}
	c := p.Caller()
	w := Whoami{
		Caller: CallerIdentity{Login: string(c.Login), Node: c.Device.Name, NodeID: c.Device.ID, Tags: append([]string{}, c.TagNames()...), Tailnet: c.Tailnet, Via: c.Via},
		Rules:  []Rule{},
	}
	if t := p.Token(); t != nil {
		w.Token = &TokenIdentity{Issuer: t.Issuer, Subject: t.Subject}
	}
	e := p.Explain()
	for _, r := range e.Rules {
		reason := ""
		if r.ReasonRequired {
			reason = "required"
		}
		rule := Rule{Name: r.Name, Role: string(r.Binds.Role()), Period: httpapi.Duration(r.Period), Priority: r.Priority,
			Namespaces: append([]string{}, r.Binds.Namespaces()...), Reason: reason, OnUse: r.OnUse, Idle: httpapi.Duration(r.Idle), Chosen: r.Chosen, Problem: r.Problem}
		if len(r.Binds) > 0 && !r.Binds.IsSimple() {
			rule.Bind = rolesOfBinds(r.Binds)
		}
		if t := r.Token; t != nil {
			rule.OIDC = &RuleToken{t.Issuer, t.Audience, t.Claims}
		}
		w.Rules = append(w.Rules, rule)
	}
	w.Decision = decisionOf(e)
	if err := d.explainClusterWide(ctx, e.Rules, &w); err != nil {
		return Whoami{}, err
	}
	switch s, there, err := d.findSignin(ctx, p, req.Session); {
	case err != nil:
		return Whoami{}, err
	case there:
		w.Signin = new(d.status(s))
	}
	return w, nil
}

func decisionOf(e access.Explanation) Decision {
	if refused := problem.From(e.Refused); refused != nil {
		return Decision{Code: refused.Code, Message: refused.Message, Advice: append([]string{}, refused.Advice...), Choices: refused.Choices}
	}
	var texts []string
	for _, b := range e.Permit.Binds() {
		texts = append(texts, fmt.Sprintf("the role %q for %v %s", b.Role, httpapi.Duration(e.Permit.Period()), b.Where()))
	}
	return Decision{Allowed: true, Advice: []string{}, Message: "A login gives " + strings.Join(texts, ", and ") + "."}
}

// findSignin returns the caller's sign-in from the cache. For a caller with a grant it also queries the
// API server, because the cache may lag behind a login. A caller without a grant causes no call to
// the API server.
func (d *Service) findSignin(ctx context.Context, p access.Permit, session Session) (Signin, bool, error) {
	name := ownerOf(p, session).Name()
	if s, there := d.Store.GetCached(name); there || p.OwnerOnly() != nil {
		return s, there, nil
	}
	s, err := d.Store.Get(ctx, name)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return Signin{}, false, unavailable(err)
	}
	return s, err == nil, nil
}

// A ClusterInfoRequest has no parameters.
type ClusterInfoRequest struct{}

// ClusterInfo describes how people reach the cluster. A client queries it first: the proof of the
// response shows which cluster the client is about to sign in to. The first four fields are the
// ones that existing clients read.
type ClusterInfo struct {
	ServerURL             string            `json:"server_url" doc:"URL of the API server for people"`
	InsecureSkipTLSVerify bool              `json:"insecure_skip_tls_verify"`
	CAData                []byte            `json:"ca_data" doc:"CA certificates of the API server, PEM; empty: its certificate is public"`
	Labels                map[string]string `json:"labels" null:"never"`
	Name                  string            `json:"name"`
	ID                    string            `json:"id" doc:"does not change when the name changes"`
	CAHash                string            `json:"ca_hash" doc:"sha256: and the hex SHA-256 of the sorted DER forms of ca_data; empty if that is"`
	Key                   httpapi.PublicKey `json:"key,omitzero" doc:"the public key that verifies Tailplane-Proof; absent while the server has no key"`
	Version               string            `json:"version" doc:"version of the access server"`
	Servers               []string          `json:"servers,omitempty" doc:"base URLs of the cluster's access servers, the answering one first; each proves the same key"`
	Modes                 []Mode            `json:"modes,omitempty" enum:"proxy,token" doc:"how kubectl may reach the API server, the preferred way first; absent: token"`
	Proxies               []ProxyServer     `json:"proxies,omitempty" doc:"access proxies of the cluster, any of which serves; absent: none"`
	OIDC                  []AcceptedIssuer  `json:"oidc,omitempty" doc:"issuers whose OIDC tokens the server accepts beside the tailnet's identity; send a token only to a server that has proved its key"`
}

func (d *Service) clusterInfo(_ context.Context, p access.Permit, _ ClusterInfoRequest) (ClusterInfo, error) {
	if err := p.Require(access.ClusterInfo, d.Now()); err != nil {
		return ClusterInfo{}, err
	}
	info := d.Cluster
	if d.Key != nil {
		key, _ := d.Key()
		info.Key = key.Public()
	}
	if d.Servers != nil {
		info.Servers = d.Servers()
	}
	if d.Proxies != nil {
		info.Proxies = d.Proxies()
	}
	if info.Labels == nil {
		info.Labels = map[string]string{}
	}
	return info, nil
}

// CAHash returns a short ID for a list of PEM certificates, independent of their order. It is
// "sha256:" and the hex SHA-256 of their DER forms, sorted and concatenated.
func CAHash(certificates []byte) (string, error) {
	var ders [][]byte
	for rest := certificates; len(bytes.TrimSpace(rest)) > 0; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil || block.Type != "CERTIFICATE" {
			return "", errors.New("it contains data that is not a PEM certificate")
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return "", fmt.Errorf("certificate %d: %w", len(ders)+1, err)
		}
		ders = append(ders, block.Bytes)
	}
	if len(ders) == 0 {
		return "", errors.New("it contains no certificate")
	}
	slices.SortFunc(ders, bytes.Compare)
	sum := sha256.Sum256(bytes.Join(ders, nil))
	return "sha256:" + hex.EncodeToString(sum[:]), nil
}
