package config

// Fields of the state Secret in addition to the node's own state.
const (
	DeviceID   = "device_id"   // the node's stable ID
	DeviceFQDN = "device_fqdn" // with the final dot
	DeviceIPs  = "device_ips"  // a JSON list
	PodUID     = "pod_uid"
	CapVersion = "tailscale_capver"
	Reissue    = "reissue_authkey" // ID of the auth key that control rejected
	NoKey      = "no-authkey"      // value of Reissue if there was no key
)

// Contents of the config Secret.
const (
	AuthKeyField = "authkey"

	// AuthKeyID is the annotation with the ID of an auth key. The ID is not secret.
	AuthKeyID = "gateway.tailscale.com/authkey-id"
)
