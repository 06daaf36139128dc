package csi

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// A Driver is a CSI driver whose volumes are in memory. It shares no code with criproxy, and does what the specification
// requires of a driver with the capabilities that it announces.
type Driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedGroupControllerServer
	csi.UnimplementedNodeServer

	Name, Node string
	server     *grpc.Server

	mu        sync.Mutex
	last      int // number of the latest volume or snapshot
	volumes   map[string]*volume
	snapshots map[string]*csi.Snapshot
	names     map[string]string // :: name of a snapshot → id
	groups    map[string]*csi.VolumeGroupSnapshot
	calls     map[string]int // :: full method → how often it was called
}

type volume struct {
	*csi.Volume
	name      string
	published *csi.ControllerPublishVolumeRequest
	targets   map[string]bool
	staged    string
}

// Serve starts a driver that listens on l, until Stop.
func Serve(l net.Listener, name, node string) *Driver {
	d := &Driver{
		Name: name, Node: node,
		volumes: map[string]*volume{}, snapshots: map[string]*csi.Snapshot{}, names: map[string]string{},
		groups: map[string]*csi.VolumeGroupSnapshot{}, calls: map[string]int{},
	}
	d.server = grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		d.mu.Lock()
		defer d.mu.Unlock() // one call at a time
		d.calls[info.FullMethod]++
		return handle(ctx, request)
	}))
	csi.RegisterIdentityServer(d.server, d)
	csi.RegisterControllerServer(d.server, d)
	csi.RegisterGroupControllerServer(d.server, d)
	csi.RegisterNodeServer(d.server, d)
	go func() { _ = d.server.Serve(l) }() // until Stop
	return d
}

// Stop ends the driver at once.
func (d *Driver) Stop() { d.server.Stop() }

// Calls returns how often each method was called.
func (d *Driver) Calls() map[string]int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.calls)
}

// Volumes returns the ids of all volumes.
func (d *Driver) Volumes() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(maps.Keys(d.volumes))
}

func (d *Driver) newID() string {
	d.last++
	return fmt.Sprintf("%06d", d.last) // all drivers use the same numbers, so that a mix-up is noticed
}

func invalid(format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, format, args...)
}
func notFound(what, id string) error {
	return status.Errorf(codes.NotFound, "there is no %s %q", what, id)
}

func (d *Driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: d.Name, VendorVersion: "1"}, nil
}

func (d *Driver) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	reply := &csi.GetPluginCapabilitiesResponse{}
	for _, s := range []csi.PluginCapability_Service_Type{csi.PluginCapability_Service_CONTROLLER_SERVICE, csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE} {
		reply.Capabilities = append(reply.Capabilities, &csi.PluginCapability{Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: s}}})
	}
	return reply, nil
}

func (d *Driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

func (d *Driver) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	reply := &csi.ControllerGetCapabilitiesResponse{}
	for _, c := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME, csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
		csi.ControllerServiceCapability_RPC_LIST_VOLUMES, csi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES,
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT, csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS,
		csi.ControllerServiceCapability_RPC_GET_SNAPSHOT, csi.ControllerServiceCapability_RPC_GET_VOLUME,
		csi.ControllerServiceCapability_RPC_GET_CAPACITY, csi.ControllerServiceCapability_RPC_CLONE_VOLUME,
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME, csi.ControllerServiceCapability_RPC_MODIFY_VOLUME,
		csi.ControllerServiceCapability_RPC_PUBLISH_READONLY,
	} {
		reply.Capabilities = append(reply.Capabilities, &csi.ControllerServiceCapability{Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: c}}})
	}
	return reply, nil
}

func (d *Driver) GetCapacity(context.Context, *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	return &csi.GetCapacityResponse{AvailableCapacity: 1 << 40}, nil
}

func (d *Driver) CreateVolume(_ context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if r.GetName() == "" || len(r.GetVolumeCapabilities()) == 0 {
		return nil, invalid("want a name and capabilities")
	}
	if r.GetMutableParameters()["XXX_FakeKey"] != "" {
		return nil, invalid("there is no such parameter")
	}
	size := r.GetCapacityRange().GetRequiredBytes()
	for _, v := range d.volumes {
		if v.name == r.GetName() {
			if v.GetCapacityBytes() != size {
				return nil, status.Errorf(codes.AlreadyExists, "volume %q has another size", v.name)
			}
			return &csi.CreateVolumeResponse{Volume: v.Volume}, nil
		}
	}
	source := r.GetVolumeContentSource()
	if id := source.GetVolume().GetVolumeId(); id != "" && d.volumes[id] == nil {
		return nil, notFound("volume", id)
	}
	if id := source.GetSnapshot().GetSnapshotId(); id != "" && d.snapshots[id] == nil {
		return nil, notFound("snapshot", id)
	}
	v := &volume{name: r.GetName(), targets: map[string]bool{}, Volume: &csi.Volume{VolumeId: d.newID(), CapacityBytes: size, ContentSource: source}}
	d.volumes[v.GetVolumeId()] = v
	return &csi.CreateVolumeResponse{Volume: v.Volume}, nil
}

func (d *Driver) DeleteVolume(_ context.Context, r *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	if r.GetVolumeId() == "" {
		return nil, invalid("want an id")
	}
	delete(d.volumes, r.GetVolumeId())
	return &csi.DeleteVolumeResponse{}, nil
}

// volume returns the volume of a request.
func (d *Driver) volume(id string) (*volume, error) {
	if id == "" {
		return nil, invalid("want the id of a volume")
	}
	if v := d.volumes[id]; v != nil {
		return v, nil
	}
	return nil, notFound("volume", id)
}

func (d *Driver) ControllerPublishVolume(_ context.Context, r *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	if r.GetVolumeId() == "" || r.GetNodeId() == "" || r.GetVolumeCapability() == nil {
		return nil, invalid("want a volume, a node and a capability")
	}
	v, err := d.volume(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if r.GetNodeId() != d.Node {
		return nil, notFound("node", r.GetNodeId())
	}
	if v.published != nil && v.published.GetReadonly() != r.GetReadonly() {
		return nil, status.Error(codes.AlreadyExists, "it is published in another way")
	}
	v.published = r
	return &csi.ControllerPublishVolumeResponse{PublishContext: map[string]string{"driver": d.Name}}, nil
}

func (d *Driver) ControllerUnpublishVolume(_ context.Context, r *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	if r.GetVolumeId() == "" {
		return nil, invalid("want an id")
	}
	if v := d.volumes[r.GetVolumeId()]; v != nil {
		v.published = nil
	}
	return &csi.ControllerUnpublishVolumeResponse{}, nil
}

func (d *Driver) ValidateVolumeCapabilities(_ context.Context, r *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	if len(r.GetVolumeCapabilities()) == 0 {
		return nil, invalid("want capabilities")
	}
	if _, err := d.volume(r.GetVolumeId()); err != nil {
		return nil, err
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{VolumeCapabilities: r.GetVolumeCapabilities()}}, nil
}

// page returns the items of the page that begins at the token, and the token of the next page.
func page[T any](items []T, token string, size int32) ([]T, string, error) {
	first := 0
	if token != "" {
		var err error
		if first, err = strconv.Atoi(token); err != nil || first < 0 || first > len(items) {
			return nil, "", status.Errorf(codes.Aborted, "there is no page %q", token)
		}
	}
	items = items[first:]
	if size > 0 && len(items) > int(size) {
		return items[:size], strconv.Itoa(first + int(size)), nil
	}
	return items, "", nil
}

func (d *Driver) ListVolumes(_ context.Context, r *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	reply := &csi.ListVolumesResponse{}
	ids, next, err := page(slices.Sorted(maps.Keys(d.volumes)), r.GetStartingToken(), r.GetMaxEntries())
	for _, id := range ids {
		e := &csi.ListVolumesResponse_Entry{Volume: d.volumes[id].Volume, Status: &csi.ListVolumesResponse_VolumeStatus{}}
		if p := d.volumes[id].published; p != nil {
			e.Status.PublishedNodeIds = []string{p.GetNodeId()}
		}
		reply.Entries = append(reply.Entries, e)
	}
	reply.NextToken = next
	return reply, err
}

func (d *Driver) ControllerGetVolume(_ context.Context, r *csi.ControllerGetVolumeRequest) (*csi.ControllerGetVolumeResponse, error) {
	v, err := d.volume(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	return &csi.ControllerGetVolumeResponse{Volume: v.Volume, Status: &csi.ControllerGetVolumeResponse_VolumeStatus{}}, nil
}

func (d *Driver) ControllerExpandVolume(_ context.Context, r *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	if r.GetCapacityRange() == nil {
		return nil, invalid("want a size")
	}
	v, err := d.volume(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	v.CapacityBytes = r.GetCapacityRange().GetRequiredBytes()
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: v.CapacityBytes, NodeExpansionRequired: true}, nil
}

func (d *Driver) ControllerModifyVolume(_ context.Context, r *csi.ControllerModifyVolumeRequest) (*csi.ControllerModifyVolumeResponse, error) {
	if _, err := d.volume(r.GetVolumeId()); err != nil {
		return nil, err
	}
	if r.GetMutableParameters()["XXX_FakeKey"] != "" {
		return nil, invalid("there is no such parameter")
	}
	return &csi.ControllerModifyVolumeResponse{}, nil
}

func now() *timestamppb.Timestamp { return timestamppb.Now() }
