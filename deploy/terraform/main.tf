# One login node and GPU nodes with Slurm, on a cloud that speaks OpenStack. The login node runs
# slurmctld and exports /shared; the GPU image must bring the NVIDIA driver.
terraform {
  required_version = ">= 1.6"
  required_providers {
    openstack = {
      source  = "terraform-provider-openstack/openstack"
      version = "~> 3.0"
    }
  }
}

provider "openstack" {}

locals {
  gpu_names = [for k in range(var.gpu_nodes) : format("%s-gpu%02d", var.name, k)]
  gpu_ips   = [for k in range(var.gpu_nodes) : cidrhost(var.subnet, 10 + k)]
  login_ip  = cidrhost(var.subnet, 5)
  shared = {
    login_name    = "${var.name}-login"
    login_ip      = local.login_ip
    gpu_names     = local.gpu_names
    gpu_ips       = local.gpu_ips
    gpus_per_node = var.gpus_per_node
    gpu_cpus      = var.gpu_cpus
    gpu_memory_mb = var.gpu_memory_mb
    subnet        = var.subnet
  }
}

resource "openstack_networking_network_v2" "cluster" {
  name = var.name
}

resource "openstack_networking_subnet_v2" "cluster" {
  name       = var.name
  network_id = openstack_networking_network_v2.cluster.id
  cidr       = var.subnet
  ip_version = 4
}

resource "openstack_networking_router_v2" "cluster" {
  name                = var.name
  external_network_id = var.external_network_id
}

resource "openstack_networking_router_interface_v2" "cluster" {
  router_id = openstack_networking_router_v2.cluster.id
  subnet_id = openstack_networking_subnet_v2.cluster.id
}

resource "openstack_networking_secgroup_v2" "cluster" {
  name        = var.name
  description = "All between the nodes, ssh to the login node from where it is allowed"
}

resource "openstack_networking_secgroup_rule_v2" "inside" {
  direction         = "ingress"
  ethertype         = "IPv4"
  remote_group_id   = openstack_networking_secgroup_v2.cluster.id
  security_group_id = openstack_networking_secgroup_v2.cluster.id
}

resource "openstack_networking_secgroup_rule_v2" "ssh" {
  for_each          = toset(var.ssh_from)
  direction         = "ingress"
  ethertype         = "IPv4"
  protocol          = "tcp"
  port_range_min    = 22
  port_range_max    = 22
  remote_ip_prefix  = each.value
  security_group_id = openstack_networking_secgroup_v2.cluster.id
}

resource "openstack_compute_instance_v2" "login" {
  name            = "${var.name}-login"
  image_name      = var.login_image
  flavor_name     = var.login_flavor
  key_pair        = var.key_pair
  security_groups = [openstack_networking_secgroup_v2.cluster.name]
  user_data       = templatefile("${path.module}/login.yaml.tftpl", local.shared)

  network {
    uuid        = openstack_networking_network_v2.cluster.id
    fixed_ip_v4 = local.login_ip
  }

  depends_on = [openstack_networking_subnet_v2.cluster]
}

resource "openstack_compute_instance_v2" "gpu" {
  count           = var.gpu_nodes
  name            = local.gpu_names[count.index]
  image_name      = var.gpu_image
  flavor_name     = var.gpu_flavor
  key_pair        = var.key_pair
  security_groups = [openstack_networking_secgroup_v2.cluster.name]
  user_data       = templatefile("${path.module}/gpu.yaml.tftpl", local.shared)

  network {
    uuid        = openstack_networking_network_v2.cluster.id
    fixed_ip_v4 = local.gpu_ips[count.index]
  }

  depends_on = [openstack_networking_subnet_v2.cluster]
}

output "login" {
  description = "Internal address of the login node; give it a floating IP of your cloud"
  value       = openstack_compute_instance_v2.login.access_ip_v4
}

output "contract" {
  description = "What was ordered: the cluster: part of thresholds.yaml, all but the model and the NICs"
  value       = <<-YAML
    cluster:
      nodes: ${var.gpu_nodes}
      gpus_per_node: ${var.gpus_per_node}
  YAML
}
