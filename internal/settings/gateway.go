package settings

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"os"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Gateway is the file of the gateway role.
type Gateway struct {
	// CredentialNamespaces are the namespaces, beside its own, whose Secrets the
	// operator may read for the credentials of tailnets.
	CredentialNamespaces []string       `yaml:"credentialNamespaces,omitempty"`
	Tailnet              GatewayTailnet `yaml:"tailnet"`
}

// GatewayTailnet is how the API of each tailnet is asked.
type GatewayTailnet struct {
	APIBaseURLs       []string `yaml:"apiBaseURLs"` // where a credential may be sent
	RequestsPerSecond float64  `yaml:"requestsPerSecond"`
	Burst             int      `yaml:"burst"`
}

// DefaultGateway returns the settings that a file may leave out.
func DefaultGateway() Gateway {
	return Gateway{Tailnet: GatewayTailnet{APIBaseURLs: []string{"https://api.tailscale.com"}, RequestsPerSecond: 5, Burst: 10}}
}

// LoadGateway reads and checks the file at path.
func LoadGateway(path string) (Gateway, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return Gateway{}, fmt.Errorf("settings: %w; name the file with --config", err)
	}
	g, err := ParseGateway(b)
	if err != nil {
		return Gateway{}, fmt.Errorf("settings %s: %w", path, err)
	}
	return g, nil
}

// plainGateway turns the decoder's words about Go types into words about the file.
var plainGateway = strings.NewReplacer("yaml: ", "", "not found in type settings.GatewayTailnet", "is not a setting of tailnet",
	"not found in type settings.Gateway", "is not a setting", "into int", "as a number", "into float64", "as a number")

// ParseGateway decodes a file over the defaults, strictly, and checks it.
func ParseGateway(b []byte) (Gateway, error) {
	g := DefaultGateway()
	d := yaml.NewDecoder(bytes.NewReader(b))
	d.KnownFields(true)
	if err := d.Decode(&g); err != nil && err != io.EOF {
		if te, ok := errors.AsType[*yaml.TypeError](err); ok {
			return Gateway{}, errors.New(plainGateway.Replace(strings.Join(te.Errors, "; ")))
		}
		return Gateway{}, errors.New(plainGateway.Replace(err.Error()))
	}
	if err := d.Decode(new(any)); err != io.EOF {
		return Gateway{}, errors.New("the file holds more than one YAML document")
	}
	return g, g.validate()
}

func (g Gateway) validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for _, ns := range g.CredentialNamespaces {
		if !label.MatchString(ns) {
			bad("credentialNamespaces: %q is not the name of a namespace", ns)
		}
	}
	t := g.Tailnet
	if len(t.APIBaseURLs) == 0 {
		bad("tailnet.apiBaseURLs is empty: no tailnet could be asked")
	}
	for _, text := range t.APIBaseURLs {
		u, err := url.Parse(text)
		if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || strings.Trim(u.Path, "/") != "" {
			bad("tailnet.apiBaseURLs: %q is not a scheme and a host, such as https://api.tailscale.com", text)
			continue
		}
		ip, err := netip.ParseAddr(u.Hostname())
		loopback := u.Hostname() == "localhost" || err == nil && ip.IsLoopback()
		if u.Scheme != "https" && (u.Scheme != "http" || !loopback) {
			bad("tailnet.apiBaseURLs: %q would carry credentials in the clear; https, or http to a loopback address", text)
		}
	}
	if t.RequestsPerSecond <= 0 || t.RequestsPerSecond > 1000 {
		bad("tailnet.requestsPerSecond: %v; above 0, at most 1000", t.RequestsPerSecond)
	}
	if t.Burst < 1 || t.Burst > 10000 {
		bad("tailnet.burst: %d; 1 to 10000", t.Burst)
	}
	return errors.Join(errs...)
}
