"""DCGAN: two backward passes for one step of the discriminator, whose output the
generator's loss then differentiates; samples of fixed noise in training mode."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

NZ = 5


def init_weights(module):
    if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
        module.weight.data.normal_(0.0, 0.2)
    elif isinstance(module, nn.BatchNorm2d):
        module.weight.data.normal_(1.0, 0.02)
        module.bias.data.fill_(0)


def main():
    torch.manual_seed(0)
    dataset = TensorDataset(torch.randn(44, 1, 6, 6).sigmoid(), torch.zeros(44))
    net_g = nn.Sequential(
        nn.ConvTranspose2d(NZ, 8, 3, bias=False), nn.BatchNorm2d(8), nn.SiLU(),
        nn.ConvTranspose2d(8, 1, 4, 2, 1, bias=False), nn.Tanh())
    net_d = nn.Sequential(
        nn.Conv2d(1, 8, 4, 2, 1, bias=False), nn.SiLU(),
        nn.Conv2d(8, 8, 2, bias=False), nn.BatchNorm2d(8), nn.SiLU(),
        nn.Conv2d(8, 1, 2, bias=False), nn.Sigmoid())
    net_g.apply(init_weights)
    net_d.apply(init_weights)
    criterion = nn.BCELoss()
    fixed_noise = torch.randn(6, NZ, 1, 1)
    optimizer_d = torch.optim.Adam(net_d.parameters(), lr=2e-3, betas=(0.5, 0.999))
    optimizer_g = torch.optim.Adam(net_g.parameters(), lr=2e-3, betas=(0.5, 0.999))
    loader = DataLoader(dataset, batch_size=4, shuffle=True, num_workers=0)

    for epoch in range(2):
        net_g.train()
        for real, _ in loader:
            net_d.zero_grad()
            label = torch.full((len(real),), 1.0, dtype=real.dtype)
            error = criterion(net_d(real).view(-1), label)
            error.backward()
            noise = torch.randn(len(real), NZ, 1, 1)
            fake = net_g(noise)
            label.fill_(0.0)
            fake_error = criterion(net_d(fake.detach()).view(-1), label)
            fake_error.backward()
            optimizer_d.step()

            net_g.zero_grad()
            label.fill_(1.0)
            error_g = criterion(net_d(fake).view(-1), label)
            error_g.backward()
            optimizer_g.step()
        samples = net_g(fixed_noise).detach()
        torch.save({"g": net_g.state_dict(), "d": net_d.state_dict(),
                    "samples": samples}, f"epoch{epoch}.pt")


if __name__ == "__main__":
    main()
