package xds

import (
	"bytes"
	_ "embed"
	"fmt"
	"net"
	"strconv"
	"text/template"
)

// Provider is the source of Envoy Gateway's resources.
type Provider string

const (
	Kubernetes Provider = "kubernetes"
	File       Provider = "file"
)

// ConfigOptions are the inputs of Envoy Gateway's configuration. Fields are required unless
// documented otherwise.
type ConfigOptions struct {
	Provider Provider
	Server   Address // address of the extension server for Envoy Gateway
	// Plain turns off TLS for a TCP address. A Unix socket and the file provider, which has no
	// Secrets, never use TLS.
	Plain bool
	// Lean turns off the calls for each virtual host, for installations with very many hosts.
	// Translation alone then adds the routes.
	Lean       bool
	MaxMessage int    // bytes; same value as Server.MaxMessage
	Namespace  string // of the Secrets with the certificates; unused without TLS
	Resources  string // the file provider's directory of resources
	Home       string // the file provider's own directory
}

//go:embed envoy-gateway.yaml.tmpl
var configText string

// Config returns Envoy Gateway's configuration. It is the value of envoy-gateway.yaml in the
// ConfigMap envoy-gateway-config, or the file for `envoy-gateway server`.
func Config(o ConfigOptions) ([]byte, error) {
	d := struct {
		ConfigOptions
		TLS            bool
		Unix, IP, Host string
		Port           int
		Size           string
	}{ConfigOptions: o, TLS: !o.Plain && o.Provider == Kubernetes && o.Server.Network != "unix", Size: strconv.Itoa(o.MaxMessage)}
	if o.MaxMessage%(1<<20) == 0 {
		d.Size = strconv.Itoa(o.MaxMessage>>20) + "Mi"
	}
	switch {
	case o.Provider != Kubernetes && o.Provider != File:
		return nil, fmt.Errorf("provider %q: must be kubernetes or file", o.Provider)
	case o.Provider == File && (o.Resources == "" || o.Home == ""):
		return nil, fmt.Errorf("the file provider needs a folder with resources and a home folder")
	case o.MaxMessage <= 0:
		return nil, fmt.Errorf("the maximum message size is not set")
	}
	if o.Server.Network == "unix" {
		d.Unix = o.Server.Addr
	} else {
		host, port, err := net.SplitHostPort(o.Server.Addr)
		if err != nil || host == "" {
			return nil, fmt.Errorf("extension server %q: must be host:port, as Envoy Gateway reaches it", o.Server.Addr)
		}
		if d.Port, err = strconv.Atoi(port); err != nil {
			return nil, fmt.Errorf("extension server %q: the port must be a number", o.Server.Addr)
		}
		if net.ParseIP(host) != nil {
			d.IP = host
		} else {
			d.Host = host
		}
	}
	t, err := template.New("envoy-gateway.yaml").Funcs(template.FuncMap{"q": strconv.Quote}).Parse(configText)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if err := t.Execute(&b, d); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}
