package gatewayxds

import (
	"bytes"
	_ "embed"
	"fmt"
	"net"
	"strconv"
	"text/template"
)

// Provider is where Envoy Gateway reads its resources.
type Provider string

const (
	Kubernetes Provider = "kubernetes"
	File       Provider = "file"
)

// ConfigOptions say what Envoy Gateway is configured for. Fields without a remark are required.
type ConfigOptions struct {
	Provider Provider
	Server   Address // where Envoy Gateway finds the extension server
	// Plain leaves TLS out for a TCP address. It is so on a Unix socket, and with the file provider, which has no Secrets.
	Plain bool
	// Lean leaves out the calls for each virtual host, for very many hosts: Translation then adds the routes alone.
	Lean       bool
	MaxMessage int    // bytes, as of Server
	Namespace  string // of the Secrets with the certificates; unused without TLS
	Resources  string // the folder of the file provider's resources
	Home       string // the folder of the file provider's own files
}

//go:embed envoy-gateway.yaml.tmpl
var configText string

// Config returns Envoy Gateway's configuration: what stands in the ConfigMap envoy-gateway-config under envoy-gateway.yaml,
// or in the file that `envoy-gateway server` is started with.
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
		return nil, fmt.Errorf("provider %q: kubernetes or file", o.Provider)
	case o.Provider == File && (o.Resources == "" || o.Home == ""):
		return nil, fmt.Errorf("the file provider needs a folder of resources and one of its own")
	case o.MaxMessage <= 0:
		return nil, fmt.Errorf("no size of messages")
	}
	if o.Server.Network == "unix" {
		d.Unix = o.Server.At
	} else {
		host, port, err := net.SplitHostPort(o.Server.At)
		if err != nil || host == "" {
			return nil, fmt.Errorf("extension server %q: host:port, as Envoy Gateway finds it", o.Server.At)
		}
		if d.Port, err = strconv.Atoi(port); err != nil {
			return nil, fmt.Errorf("extension server %q: the port is a number", o.Server.At)
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
