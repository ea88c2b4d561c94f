"""WGAN-GP: a critic with a penalty on gradients between real and made images, and a
generator that is trained with every third batch."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, N_CRITIC = 3, 3


def gradient_penalty(net_d, real, fake):
    alpha = torch.rand(len(real), 1, 1, 1)
    mixed = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
    out = net_d(mixed)
    gradients = torch.autograd.grad(
        outputs=out, inputs=mixed, grad_outputs=torch.ones_like(out),
        create_graph=True, retain_graph=True, only_inputs=True)[0]
    return ((gradients.view(len(real), -1).norm(2, dim=1) - 1) ** 2).mean()


def main():
    torch.manual_seed(0)
    net_g = nn.Sequential(
        nn.Linear(5, 36, bias=False), nn.BatchNorm1d(36), nn.SiLU(),
        nn.Unflatten(1, (4, 3, 3)), nn.ConvTranspose2d(4, 3, 2, 2), nn.Tanh())
    net_d = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.SiLU(), nn.Flatten(),
                          nn.Linear(72, 1))
    optimizer_d = torch.optim.Adam(net_d.parameters(), lr=1e-3, betas=(0.5, 0.9))
    optimizer_g = torch.optim.Adam(net_g.parameters(), lr=1e-3, betas=(0.5, 0.9))
    dataset = TensorDataset(torch.randn(44, 3, 6, 6).tanh())
    loader = DataLoader(dataset, batch_size=4, shuffle=True)

    for epoch in range(EPOCHS):
        for i, (real,) in enumerate(loader):
            optimizer_d.zero_grad()
            z = torch.randn(len(real), 5)
            fake = net_g(z)
            penalty = gradient_penalty(net_d, real.data, fake.data)
            d_loss = -net_d(real).mean() + net_d(fake).mean() + 10 * penalty
            d_loss.backward()
            optimizer_d.step()
            optimizer_g.zero_grad()
            if i % N_CRITIC == 0:
                g_loss = -net_d(net_g(z)).mean()
                g_loss.backward()
                optimizer_g.step()
        print(f"epoch {epoch} critic {d_loss.item():.4f}")
    torch.save({"g": net_g.state_dict(), "d": net_d.state_dict()}, "model.pt")


if __name__ == "__main__":
    main()
